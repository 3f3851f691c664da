#include "manifest.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "fail.h"
#include "json.h"

namespace prge {

namespace {

// Bounds no program comes near; products of any three stay far below 2^63.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxElements = int64_t{1} << 31;

Error damaged(const char* field) {
  return fail(Error::InvalidProgram, "the program's manifest has no usable %s: compile it again", field);
}

// Fields that earlier programs of this contract version do not have.
std::string text_or(const Json& value, const char* missing) {
  return value.kind == Json::Kind::Null ? missing : value.text;
}

Error read_method(const Json& json, Manifest& out) {
  const std::string method = text_or(json["method"], "prge");
  if (method != "prge" && method != "exact" && method != "shortcut") {
    return damaged("method");
  }
  out.has_gradients = method != "prge";
  out.optimizer = json["optimizer"].text;
  const bool is_known = out.optimizer == "norm" || out.optimizer == "momentum" || out.optimizer == "adamw";
  out.accumulates = json["accumulates"].kind == Json::Kind::True;
  if (out.accumulates && !out.has_gradients) {
    return damaged("accumulates");
  }
  out.has_label_weights = json["label_weights"].kind == Json::Kind::True;
  if (out.has_label_weights && !out.has_gradients) {
    return damaged("label_weights");
  }
  return is_known == out.has_gradients ? Error::Ok : damaged("optimizer");
}

Error read_sizes(const Json& json, Manifest& out) {
  const struct {
    const char* name;
    int64_t low, high;
    int64_t* field;
  } sizes[] = {
      {"q", 1, out.has_gradients ? 1 : 1 << 16, &out.q},
      {"batch_size", 1, kMaxSize, &out.batch_size},
      {"seq_len", 1, kMaxSize, &out.seq_len},
      {"num_labels", 1, kMaxSize, &out.num_labels},
      {"vocab_size", 1, int64_t{1} << 31, &out.vocab_size},
      {"rank", 1, kMaxSize, &out.rank},
      {"pad_token_id", 0, int64_t{1} << 31, &out.pad_token_id},
      {"hidden_size", 0, kMaxSize, &out.hidden_size},
  };
  for (const auto& size : sizes) {
    if (!json[size.name].integer(size.low, size.high, *size.field)) {
      return damaged(size.name);
    }
  }
  const std::pair<const char*, int64_t*> optional_sizes[] = {{"context", &out.context}, {"rollouts", &out.rollouts}};
  for (const auto& [name, field] : optional_sizes) {
    if (json[name].kind != Json::Kind::Null && !json[name].integer(0, kMaxSize, *field)) {
      return damaged(name);
    }
  }
  const int64_t widest = out.seq_len > out.num_labels ? out.seq_len : out.num_labels;
  if (out.num_rows() > kMaxElements / widest) {
    return damaged("batch size");
  }
  if (out.batch_size * out.seq_len > kMaxElements / std::max(out.hidden_size, int64_t{1})) {
    return damaged("hidden_size");
  }
  return Error::Ok;
}

Error read_choices(const Json& json, Manifest& out) {
  const Json& dynamic = json["dynamic_seq_len"];
  if (dynamic.kind != Json::Kind::True && dynamic.kind != Json::Kind::False) {
    return damaged("dynamic_seq_len");
  }
  out.is_dynamic = dynamic.kind == Json::Kind::True;
  const std::string& state = json["state"].text;
  if (state != "seeded" && state != "host" && (state != "dual" || out.has_gradients)) {
    return damaged("state");
  }
  out.is_dual = state == "dual";
  out.is_host = state == "host";
  const std::string access = text_or(json["state_access"], "buffers");
  const bool is_known = out.is_host ? access == "inputs" : access == "buffers" || (access == "outputs" && !out.is_dual);
  if (!is_known) {
    return damaged("state_access");
  }
  if (access == "outputs" && out.has_gradients) {
    return fail(
        Error::InvalidProgram,
        "this driver cannot train a program that keeps gradients and state on a device: use prgec run");
  }
  out.returns_state = access == "outputs";
  const std::string prefix = text_or(json["prefix"], "none");
  if (prefix != "none" && prefix != "shared" && prefix != "method") {
    return damaged("prefix");
  }
  out.prefix = prefix == "none" ? Prefix::None : prefix == "shared" ? Prefix::Shared : Prefix::Method;
  if (out.prefix == Prefix::Method && out.hidden_size < 1) {
    return damaged("hidden_size");
  }
  return Error::Ok;
}

Error read_rate(const Json& json, Manifest& out) {
  const Json& number = json["lr"];
  if (number.kind == Json::Kind::Null) {
    return Error::Ok;
  }
  out.lr = std::strtod(number.text.c_str(), nullptr);
  return number.kind == Json::Kind::Number && std::isfinite(out.lr) && out.lr >= 0 ? Error::Ok : damaged("lr");
}

Error read_update(const Json& json, Manifest& out) {
  if (!out.is_host || !out.has_gradients) {
    return Error::Ok;
  }
  Update& update = out.update;
  const std::pair<const char*, double*> numbers[] = {{"clip", &update.clip},   {"beta1", &update.beta1},
                                                     {"beta2", &update.beta2}, {"eps", &update.eps},
                                                     {"decay", &update.decay}, {"polyak", &update.polyak}};
  for (const auto& [name, field] : numbers) {
    const Json& number = json["update"][name];
    *field = std::strtod(number.text.c_str(), nullptr);
    if (number.kind != Json::Kind::Number || !std::isfinite(*field)) {
      return damaged("update");
    }
  }
  return Error::Ok;
}

Error read_sites(const Json& json, Manifest& out) {
  for (const Json& item : json["sites"].items) {
    Site site;
    site.name = item["name"].text;
    if (!item["name"].is_string() || !item["index"].integer(0, 0xffffffff, site.index) ||
        !item["out_features"].integer(1, int64_t{1} << 31, site.out_features)) {
      return damaged("sites");
    }
    // Dual state has 2q copies of each, and so has a host that perturbs.
    if (out.rank > kMaxElements / site.out_features / (out.is_dual || out.is_host ? 2 * out.q : 1)) {
      return damaged("rank");
    }
    out.sites.push_back(std::move(site));
  }
  return out.sites.empty() ? damaged("sites") : Error::Ok;
}

} // namespace

Result<Manifest> Manifest::parse(std::string_view text) {
  Json json;
  if (!Json::parse(text, json) || json.kind != Json::Kind::Object) {
    return fail(Error::InvalidProgram, "the program's manifest is not valid JSON: compile it again");
  }
  Manifest out;
  PRGE_TRY(read_method(json, out));
  PRGE_TRY(read_sizes(json, out));
  PRGE_TRY(read_choices(json, out));
  PRGE_TRY(read_rate(json, out));
  PRGE_TRY(read_update(json, out));
  PRGE_TRY(read_sites(json, out));
  for (const auto& [name, field] :
       {std::pair<const char*, std::string*>{"model", &out.model},
        {"backend", &out.backend},
        {"base_sha256", &out.base_sha256}}) {
    if (!json[name].is_string()) {
      return damaged(name);
    }
    *field = json[name].text;
  }
  out.a_sha256 = json["a_sha256"].text;
  out.data_sha256 = json["data_sha256"].text;
  out.pipeline = json["pipeline"].text;
  out.has_checksums = json["has_checksums"].kind == Json::Kind::True;
  out.alpha = json["alpha"].text;
  out.a_seed = json["a_seed"].text;
  if (json["alpha"].kind != Json::Kind::Number || json["a_seed"].kind != Json::Kind::Number) {
    return damaged("alpha or a_seed");
  }
  if (out.alpha.find_first_of(".e") == std::string::npos) {
    out.alpha += ".0"; // as Python prints a float
  }
  return out;
}

std::string Manifest::adapter_metadata(bool with_model, const std::string& optimizer_sha256, uint64_t step) const {
  std::string targets = "[";
  for (const Site& site : sites) {
    targets += targets.size() > 1 ? ", [" : "[";
    append_quoted(targets, site.name);
    targets += ", " + std::to_string(site.index) + "]";
  }
  targets += "]";
  std::string out = "{";
  const auto add = [&out](const char* name, const std::string& value) {
    out += out.size() > 1 ? "," : "";
    append_quoted(out, name);
    out += ':';
    append_quoted(out, value);
  };
  add("a_seed", a_seed);
  if (!a_sha256.empty()) {
    add("a_sha256", a_sha256);
  }
  add("alpha", alpha);
  add("base_sha256", base_sha256);
  add("contract", std::to_string(kContractVersion));
  add("format", "prgec-lora-fa");
  if (with_model) {
    add("model", model);
  }
  if (!optimizer_sha256.empty()) {
    add("optimizer_sha256", optimizer_sha256);
  }
  add("rank", std::to_string(rank));
  if (!optimizer_sha256.empty()) {
    add("step", std::to_string(step));
  }
  add("targets", targets);
  return out + "}";
}

Digest Manifest::identity() const {
  // A program that computes gradients has the rules of its steps in its pipeline.
  const std::string bonds = adapter_metadata(false) + (has_gradients ? pipeline : "");
  return Sha256().update(bonds.data(), bonds.size()).finish();
}

} // namespace prge
