// Flags of a command line: what parses the value of each, and where it goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

bool parse_value(const char* text, double& out);
bool parse_value(const char* text, int64_t& out);
bool parse_value(const char* text, uint64_t& out);
bool parse_value(const char* text, uint32_t& out);
bool parse_value(const char* text, std::string& out);
// One more of a flag that is repeated.
bool parse_value(const char* text, std::vector<uint32_t>& out);

// A value that is absent until it is given.
template <typename T>
bool parse_value(const char* text, std::optional<T>& out) {
  return parse_value(text, out.emplace());
}

template <typename T>
bool set(void* field, const char* text) {
  return parse_value(text, *static_cast<T*>(field));
}

// A flag with a value.
struct Flag {
  const char* name;
  bool (*set)(void* field, const char* text);
  void* field;
};

template <typename T>
Flag flag(const char* name, T& field) {
  return {name, set<T>, &field};
}

// Gives the flag of that name its value; false where there is none, or the value makes no sense.
bool set_value(const std::vector<Flag>& flags, const std::string& name, const char* value);

// Whether a command line asks for help and for nothing else.
bool asks_for_help(int argc, char** argv);

// The folder of --packed-weights: as given, none for `off`, by default the user's cache.
std::string packed_weights_folder(const std::string& flag);
