install(TARGETS headwise EXPORT headwise-targets)
install(DIRECTORY include/headwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
