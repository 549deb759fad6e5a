// SPDX-License-Identifier: Apache-2.0
//
// Makes the sentences of errors: invalid("q: expected rank 4, got ", rank).
#pragma once

#include <fa3/status.h>

#include <locale>
#include <sstream>
#include <string>

namespace fa3 {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  text.imbue(std::locale::classic());  // a program's locale would group digits: 1,024
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
Status invalid(const Parts&... parts) {
  return {StatusCode::invalid_argument, concat(parts...)};
}

template <class... Parts>
Status unsupported(const Parts&... parts) {
  return {StatusCode::unsupported, concat(parts...)};
}

}  // namespace fa3
