# How every target of the project is compiled.
add_library(headwise_options INTERFACE)

# No contraction: a multiply and an add that the source keeps apart stay apart, or results would
# differ between instruction sets. No -ffast-math: -inf and NaN mean something here.
target_compile_options(headwise_options INTERFACE
  -Wall -Wextra -Wshadow -ffp-contract=off -fno-math-errno
  $<$<BOOL:${HEADWISE_WERROR}>:-Werror>)

if(HEADWISE_SANITIZE)
  # A target whose property HEADWISE_PLAIN is set only runs the instrumented code of the others.
  set(flags -fsanitize=${HEADWISE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_compile_options(headwise_options INTERFACE
    "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:HEADWISE_PLAIN>>>:${flags}>")
  target_link_options(headwise_options INTERFACE -fsanitize=${HEADWISE_SANITIZE})
endif()

find_program(HEADWISE_CCACHE ccache)
if(HEADWISE_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADWISE_CCACHE})
endif()
