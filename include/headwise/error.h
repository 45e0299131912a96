// What the library throws. Each type derives from the standard one that a caller would expect.
#pragma once

#include <stdexcept>
#include <string>

#include "headwise/export.h"

namespace headwise {

// A wrong argument: the message names it, what was found and what was expected.
class HEADWISE_API ArgumentError : public std::invalid_argument {
 public:
  ArgumentError(std::string argument, const std::string& found, const std::string& expected);
  const std::string& argument() const { return argument_; }

 private:
  std::string argument_;
};

// An element type that the argument cannot have; a TypeError in Python.
class HEADWISE_API DTypeError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

// A file that cannot be read, written or believed.
class HEADWISE_API FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace headwise
