// Work without the interpreter's lock.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace headwise::python {

// Lets other Python threads run until the end of the block. When the interpreter has ended
// meanwhile, Python up to 3.13 ends the calling (daemon) thread from within, by unwinding, which
// C++ forbids on its way: such a thread waits for the process to end instead, as it does in later
// Pythons.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // leaving this block is what is forbidden
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace headwise::python
