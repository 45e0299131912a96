# What `cmake --install` lays down, for find_package(headwise) and for pkg-config. The static library
# asks its user for what it links; the shared one carries that itself.
include(CMakePackageConfigHelpers)

install(TARGETS headwise EXPORT headwise-targets)
install(DIRECTORY include/headwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET headwise_cli)
  install(TARGETS headwise_cli)
endif()

set(headwise_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
install(EXPORT headwise-targets NAMESPACE headwise:: DESTINATION ${headwise_cmake_dir})

get_target_property(headwise_type headwise TYPE)
if(headwise_type STREQUAL "STATIC_LIBRARY")
  set(HEADWISE_IS_STATIC ON)
  set(pc_requires "libhwy zlib")
  set(pc_libs "-fopenmp -lstdc++ -lm -pthread")
else()
  set(HEADWISE_IS_STATIC OFF)
  set(pc_requires "")
  set(pc_libs "")
endif()
configure_package_config_file(cmake/headwise-config.cmake.in headwise-config.cmake
  INSTALL_DESTINATION ${headwise_cmake_dir})
write_basic_package_version_file(headwise-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headwise-config.cmake
              ${PROJECT_BINARY_DIR}/headwise-config-version.cmake
        DESTINATION ${headwise_cmake_dir})

# From the .pc file's folder to the prefix, so that the whole prefix can be moved.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/headwise.pc.in headwise.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headwise.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
