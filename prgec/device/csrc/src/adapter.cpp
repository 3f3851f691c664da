#include "adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

std::vector<const SiteState*> sorted_sites(const Program& program) {
  std::vector<const SiteState*> sites;
  for (const SiteState& site : program.sites()) {
    sites.push_back(&site);
  }
  std::sort(sites.begin(), sites.end(), [](auto* left, auto* right) { return left->name < right->name; });
  return sites;
}

std::string header_of(const Program& program, const std::vector<const SiteState*>& sites) {
  std::string header = "{\"__metadata__\":" + program.manifest().adapter_metadata(true);
  int64_t end = 0;
  for (const SiteState* site : sites) {
    const int64_t start = end;
    end += site->numel() * 4;
    header += ',';
    append_quoted(header, site->name);
    header += ":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(site->rank) + "," + std::to_string(site->out) +
        "],\"data_offsets\":[" + std::to_string(start) + "," + std::to_string(end) + "]}";
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
  return Error::Ok;
}

// Finds the values of a site in the file's data.
Result<const uint8_t*> find_values(
    const std::string& path, const Json& header, const SiteState& site, const uint8_t* data, int64_t size) {
  const Json& entry = header[site.name];
  const auto &shape = entry["shape"].items, &offsets = entry["data_offsets"].items;
  int64_t rank = 0, out = 0, start = 0, end = 0;
  const bool is_fit = entry["dtype"].text == "F32" && shape.size() == 2 && offsets.size() == 2 &&
      shape[0].integer(site.rank, site.rank, rank) && shape[1].integer(site.out, site.out, out) &&
      offsets[0].integer(0, size, start) && offsets[1].integer(start, size, end) && end - start == site.numel() * 4;
  if (!is_fit) {
    return unfit(path, "is missing or of another shape", site.name);
  }
  for (int64_t at = start; at < end; at += 4) {
    float value;
    std::memcpy(&value, data + at, sizeof(value));
    if (!std::isfinite(value)) {
      return unfit(path, "holds values that are not finite", site.name);
    }
  }
  return data + start;
}

} // namespace

Error save_adapter(const std::string& path, const Program& program) {
  const auto sites = sorted_sites(program);
  const std::string header = header_of(program, sites);
  const uint64_t header_bytes = header.size();
  AtomicFile file(path);
  PRGE_TRY(file.open());
  PRGE_TRY(file.write(&header_bytes, sizeof(header_bytes)));
  PRGE_TRY(file.write(header.data(), header.size()));
  float chunk[kChunk];
  for (const SiteState* site : sites) {
    for (int64_t at = 0; at < site->numel(); at += kChunk) {
      const int64_t count = std::min(kChunk, site->numel() - at);
      site->master(at, count, chunk);
      PRGE_TRY(file.write(chunk, static_cast<size_t>(count) * sizeof(float)));
    }
  }
  return file.commit();
}

Error load_adapter(const std::string& path, const Program& program) {
  auto file = MappedFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  const uint8_t* bytes = (*file)->data();
  const uint64_t size = (*file)->size();
  uint64_t header_bytes = 0;
  Json header;
  if (size >= 8) {
    std::memcpy(&header_bytes, bytes, 8);
  }
  if (size < 8 || header_bytes > std::min(size - 8, kMaxHeaderBytes) ||
      !Json::parse(std::string_view(reinterpret_cast<const char*>(bytes) + 8, header_bytes), header)) {
    return fail(Error::InvalidExternalData, "not an adapter (%s)", path.c_str());
  }
  PRGE_TRY(check_metadata(path, header["__metadata__"], program.manifest()));
  if (program.manifest().returns_state) {
    return fail(
        Error::InvalidArgument, "the program keeps its state on the device; no adapter can be put into it (%s)",
        path.c_str());
  }
  std::vector<const uint8_t*> values;
  for (const SiteState& site : program.sites()) {
    const auto found =
        find_values(path, header, site, bytes + 8 + header_bytes, static_cast<int64_t>(size - 8 - header_bytes));
    if (!found.ok()) {
      return found.error();
    }
    values.push_back(*found);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const SiteState& site = program.sites()[i];
    for (int64_t copy = 0; copy < site.copies; ++copy) {
      std::memcpy(site.data + copy * site.numel(), values[i], static_cast<size_t>(site.numel()) * sizeof(float));
    }
  }
  return Error::Ok;
}

} // namespace prge
