// Whether the library was built with AddressSanitizer. The tests' own code is the same either way.
#pragma once

extern "C" __attribute__((weak)) void __asan_init();  // of the sanitizer's runtime

namespace headwise::test {

inline bool sanitized() { return &__asan_init != nullptr; }

}  // namespace headwise::test
