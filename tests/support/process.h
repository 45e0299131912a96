// Runs a program and keeps what it says.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace headwise::test {

enum class Stdout { captured, closed, full_disk, reader_left };

struct ProcessResult {
  int code = -1;  // -1: ended by a signal
  std::string out, err;
};

inline std::string read_all(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char chunk[4096];
  while (const std::size_t n = std::fread(chunk, 1, sizeof chunk, file)) text.append(chunk, n);
  std::fclose(file);
  return text;
}

inline void redirect_stdout(Stdout to, std::FILE* out) {
  if (to == Stdout::captured) ::dup2(::fileno(out), STDOUT_FILENO);
  if (to == Stdout::closed) ::close(STDOUT_FILENO);
  if (to == Stdout::full_disk) ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
  if (to == Stdout::reader_left) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

inline ProcessResult run_process(const std::string& program, const std::vector<std::string>& args,
                                 Stdout to = Stdout::captured) {
  std::FILE* out = std::tmpfile();
  std::FILE* err = std::tmpfile();
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::fileno(err), STDERR_FILENO);
    redirect_stdout(to, out);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out), read_all(err)};
}

}  // namespace headwise::test
