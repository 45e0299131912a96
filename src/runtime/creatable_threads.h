// How many threads the system would give us now.
#pragma once

namespace headwise::runtime {

// The number of threads, at most `wanted`, that a region of OpenMP may have on this caller: libgomp
// ends the process when it cannot make one, so they are made and joined here first. Later calls for
// no more than before cost a comparison.
int creatable_threads(int wanted);

}  // namespace headwise::runtime
