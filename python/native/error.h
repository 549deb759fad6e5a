// SPDX-License-Identifier: Apache-2.0
//
// fa3_status as Python exceptions: the classes of fa3.errors with the library's sentence, in which
// arguments have their Python names.
#pragma once

#include <string>
#include <string_view>

#include "tensor.h"

namespace fa3::python {

// A sentence of the library, in which arguments have their Python names. Needs no GIL.
std::string in_words_of_python(std::string_view sentence);

// Raises the exception class of `status`; the format is PyErr_Format's.
void raise(fa3_status status, const char* format, ...);

// True for FA3_OK; otherwise raises with fa3_last_error().
bool check(fa3_status status);

// Clears the Python exception that is set, if any. False: it stays, for it is no Exception but ends
// the program, such as KeyboardInterrupt.
bool forget_error();

// Looks up the classes in fa3.errors; false with a Python exception set.
bool init_errors();

}  // namespace fa3::python
