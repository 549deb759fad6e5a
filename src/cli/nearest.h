// SPDX-License-Identifier: Apache-2.0
//
// The word that was meant by one that does not exist.
#pragma once

#include <string>
#include <vector>

namespace fa3::cli {

// The one of `known` with the fewest letters to insert, leave out or replace, if a third of the
// word's or fewer are wrong; else "".
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace fa3::cli
