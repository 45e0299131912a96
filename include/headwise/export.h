// HEADWISE_API marks what the shared library shows; everything else stays hidden.
#pragma once

#if defined(_WIN32)
#if defined(HEADWISE_BUILDING)
#define HEADWISE_API __declspec(dllexport)
#else
#define HEADWISE_API __declspec(dllimport)
#endif
#else
#define HEADWISE_API __attribute__((visibility("default")))
#endif
