#include "adapter.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "fail.h"
#include "files.h"
#include "json.h"

namespace prge {

namespace {

constexpr size_t kAlignment = 8;
constexpr int64_t kChunk = 1024;
// A header takes a hundred bytes a site; parsed, anything takes many times its length.
constexpr uint64_t kMaxHeaderBytes = 4 << 20;

using Tensors = std::vector<const StateTensor*>;

// In the order of the manifest.
Tensors tensors_of(const Program& program, bool with_optimizer) {
  Tensors tensors;
  for (const StateTensor& site : program.sites()) {
    tensors.push_back(&site);
  }
  if (with_optimizer) {
    for (const StateTensor& each : program.optimizer()) {
      tensors.push_back(&each);
    }
  }
  return tensors;
}

std::string header_of(const Tensors& tensors, const std::string& metadata) {
  std::string header = "{\"__metadata__\":" + metadata;
  int64_t end = 0;
  for (const StateTensor* each : tensors) {
    const int64_t start = end;
    end += each->numel() * 4;
    header += ',';
    append_quoted(header, each->name);
    header += ":{\"dtype\":\"F32\",\"shape\":" + each->shape_text(",") + ",\"data_offsets\":[" + std::to_string(start) +
        "," + std::to_string(end) + "]}";
  }
  header += '}';
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return header;
}

Error unfit(const std::string& path, const char* what, const std::string& name) {
  return fail(
      Error::InvalidExternalData, "the adapter does not fit the program: its %s %s (%s)", name.c_str(), what,
      path.c_str());
}

Error check_metadata(const std::string& path, const Json& found, const Manifest& manifest) {
  Json expected;
  Json::parse(manifest.adapter_metadata(false), expected);
  for (const auto& [name, value] : expected.members) {
    if (found[name].text != value.text) {
      return unfit(path, "is another", name);
    }
  }
  // Only of A that was given.
  return found["a_sha256"].text == manifest.a_sha256 ? Error::Ok : unfit(path, "is another", "a_sha256");
}

bool is_shape(const std::vector<Json>& found, const std::vector<int64_t>& expected) {
  bool is_equal = found.size() == expected.size();
  for (size_t i = 0; is_equal && i < expected.size(); ++i) {
    int64_t size = 0;
    is_equal = found[i].integer(expected[i], expected[i], size);
  }
  return is_equal;
}

// Finds the values of a tensor in the file's data.
Result<const uint8_t*> find_values(
    const std::string& path, const Json& header, const StateTensor& wanted, const uint8_t* data, int64_t size) {
  const Json& entry = header[wanted.name];
  const auto& offsets = entry["data_offsets"].items;
  int64_t start = 0, end = 0;
  const bool is_fit = entry["dtype"].text == "F32" && is_shape(entry["shape"].items, wanted.shape) &&
      offsets.size() == 2 && offsets[0].integer(0, size, start) && offsets[1].integer(start, size, end) &&
      end - start == wanted.numel() * 4;
  if (!is_fit) {
    return unfit(path, "is missing or of another shape", wanted.name);
  }
  for (int64_t at = start; at < end; at += 4) {
    float value;
    std::memcpy(&value, data + at, sizeof(value));
    if (!std::isfinite(value)) {
      return unfit(path, "holds values that are not finite", wanted.name);
    }
  }
  return data + start;
}

bool has_optimizer_of(const Program& program, std::optional<uint64_t> step) {
  return step.has_value() && !program.optimizer().empty();
}

// `step` is that of a snapshot.
Error save(const std::string& path, const Program& program, std::optional<uint64_t> step) {
  Tensors tensors = tensors_of(program, step.has_value());
  // An adapter is never without its A; a snapshot is nothing without its program, which has it.
  const auto given = program.stored_lora_a();
  PRGE_TRY(given.error());
  for (const StateTensor& each : *given) {
    if (!has_optimizer_of(program, step)) {
      tensors.push_back(&each);
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](auto* left, auto* right) { return left->name < right->name; });
  // A journal has the hash of the masters alone, which may be those of several steps.
  const bool has_optimizer = has_optimizer_of(program, step);
  const std::string optimizer_sha256 = has_optimizer ? program.optimizer_sha256().hex() : "";
  const std::string header =
      header_of(tensors, program.manifest().adapter_metadata(true, optimizer_sha256, step.value_or(0)));
  const uint64_t header_bytes = header.size();
  AtomicFile file(path);
  PRGE_TRY(file.open());
  PRGE_TRY(file.write(&header_bytes, sizeof(header_bytes)));
  PRGE_TRY(file.write(header.data(), header.size()));
  float chunk[kChunk];
  for (const StateTensor* each : tensors) {
    for (int64_t at = 0; at < each->numel(); at += kChunk) {
      const int64_t count = std::min(kChunk, each->numel() - at);
      each->master(at, count, chunk);
      PRGE_TRY(file.write(chunk, static_cast<size_t>(count) * sizeof(float)));
    }
  }
  return file.commit();
}

// Finds header and data of a safetensors file.
Error parse(const std::string& path, const MappedFile& file, Json& header, const uint8_t*& data, int64_t& size) {
  uint64_t header_bytes = 0;
  if (file.size() >= 8) {
    std::memcpy(&header_bytes, file.data(), 8);
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  if (file.size() < 8 || header_bytes > std::min<uint64_t>(file.size() - 8, kMaxHeaderBytes) ||
      !Json::parse(std::string_view(text, header_bytes), header)) {
    return fail(Error::InvalidExternalData, "not an adapter (%s)", path.c_str());
  }
  data = file.data() + 8 + header_bytes;
  size = static_cast<int64_t>(file.size() - 8 - header_bytes);
  return Error::Ok;
}

void place(const Tensors& tensors, const std::vector<const uint8_t*>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const StateTensor& to = *tensors[i];
    for (int64_t copy = 0; copy < to.copies; ++copy) {
      std::memcpy(to.data + copy * to.numel(), values[i], static_cast<size_t>(to.numel()) * sizeof(float));
    }
  }
}

Result<uint64_t> load(const std::string& path, const Program& program, bool with_optimizer) {
  auto file = MappedFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  Json header;
  const uint8_t* data = nullptr;
  int64_t size = 0;
  PRGE_TRY(parse(path, **file, header, data, size));
  PRGE_TRY(check_metadata(path, header["__metadata__"], program.manifest()));
  if (program.manifest().returns_state) {
    return fail(
        Error::InvalidArgument, "the program keeps its state on the device; no adapter can be put into it (%s)",
        path.c_str());
  }
  const Tensors tensors = tensors_of(program, with_optimizer);
  std::vector<const uint8_t*> values;
  for (const StateTensor* each : tensors) {
    const auto found = find_values(path, header, *each, data, size);
    if (!found.ok()) {
      return found.error();
    }
    values.push_back(*found);
  }
  place(tensors, values);
  const Json& metadata = header["__metadata__"];
  const std::string& expected = metadata["optimizer_sha256"].text;
  if (with_optimizer && !program.optimizer().empty() && program.optimizer_sha256().hex() != expected) {
    return fail(Error::InvalidExternalData, "the optimiser's state is damaged (%s)", path.c_str());
  }
  return static_cast<uint64_t>(std::strtoull(metadata["step"].text.c_str(), nullptr, 10));
}

} // namespace

Error save_adapter(const std::string& path, const Program& program) {
  return save(path, program, std::nullopt);
}

Error load_adapter(const std::string& path, const Program& program) {
  return load(path, program, false).error();
}

Error save_snapshot(const std::string& path, const Program& program, uint64_t steps_done) {
  return save(path, program, steps_done);
}

Result<uint64_t> load_snapshot_file(const std::string& path, const Program& program) {
  return load(path, program, true);
}

} // namespace prge
