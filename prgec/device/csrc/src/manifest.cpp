#include "manifest.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "fail.h"
#include "json.h"
#include "manifest_fields.h"

namespace prge {

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 31; // no program comes near

Error damaged(const char* field) {
  return fail(Error::InvalidProgram, "the program's manifest has no usable %s: compile it again", field);
}

bool is_number(const Json& value) {
  return value.kind == Json::Kind::Number && std::isfinite(std::strtod(value.text.c_str(), nullptr));
}

bool is_choice(const std::string& text, std::string_view choices) {
  const bool is_one = text.find('|') == std::string::npos && choices.find("|" + text + "|") != std::string_view::npos;
  return choices.empty() || is_one;
}

bool follows(const Json& value, const FieldRule& rule) {
  int64_t number;
  switch (rule.kind) {
    case FieldKind::Text:
      return value.is_string() && is_choice(value.text, rule.choices);
    case FieldKind::Texts:
      return value.kind == Json::Kind::Array;
    case FieldKind::Flag:
      return value.kind == Json::Kind::True || value.kind == Json::Kind::False;
    case FieldKind::Integer:
      return value.integer(rule.low, rule.high, number);
    case FieldKind::Number:
      return is_number(value);
    case FieldKind::Table:
      return value.kind == Json::Kind::Object;
  }
  return false;
}

// Fields that need not be there keep the value that the struct gives them.
template <size_t n>
Error check_fields(const Json& json, const FieldRule (&rules)[n]) {
  for (const FieldRule& rule : rules) {
    const Json& value = json[rule.name];
    const bool is_right = value.kind == Json::Kind::Null ? !rule.is_required : follows(value, rule);
    if (!is_right) {
      return damaged(rule.name);
    }
  }
  return Error::Ok;
}

void read(const Json& value, int64_t& out) {
  value.integer(INT64_MIN, INT64_MAX, out);
}

void read(const Json& value, bool& out) {
  out = value.kind == Json::Kind::True;
}

void read(const Json& value, double& out) {
  if (value.kind == Json::Kind::Number) {
    out = std::strtod(value.text.c_str(), nullptr);
  }
}

// Numbers whose digits are kept are read as texts, too.
void read(const Json& value, std::string& out) {
  out = value.text;
}

std::string text_or(const Json& value, const char* missing) {
  return value.kind == Json::Kind::Null ? missing : value.text;
}

void read_fields(const Json& json, Manifest& out) {
  read(json["q"], out.q);
  read(json["batch_size"], out.batch_size);
  read(json["seq_len"], out.seq_len);
  read(json["num_labels"], out.num_labels);
  read(json["vocab_size"], out.vocab_size);
  read(json["rank"], out.rank);
  read(json["pad_token_id"], out.pad_token_id);
  read(json["hidden_size"], out.hidden_size);
  read(json["context"], out.context);
  read(json["rollouts"], out.rollouts);
  read(json["dynamic_seq_len"], out.is_dynamic);
  read(json["accumulates"], out.accumulates);
  read(json["label_weights"], out.has_label_weights);
  read(json["has_checksums"], out.has_checksums);
  read(json["lr"], out.lr);
  read(json["model"], out.model);
  read(json["backend"], out.backend);
  read(json["base_sha256"], out.base_sha256);
  read(json["pipeline"], out.pipeline);
  read(json["optimizer"], out.optimizer);
  read(json["a_sha256"], out.a_sha256);
  read(json["data_sha256"], out.data_sha256);
  read(json["alpha"], out.alpha);
  read(json["a_seed"], out.a_seed);
  if (out.alpha.find_first_of(".e") == std::string::npos) {
    out.alpha += ".0"; // as Python prints a float
  }
}

// Rules between fields.
Error read_choices(const Json& json, Manifest& out) {
  const std::string method = text_or(json["method"], "prge");
  const std::string state = json["state"].text, access = text_or(json["state_access"], "buffers");
  const std::string prefix = text_or(json["prefix"], "none");
  out.has_gradients = method != "prge";
  out.is_dual = state == "dual";
  out.is_host = state == "host";
  out.returns_state = access == "outputs";
  out.prefix = prefix == "none" ? Prefix::None : prefix == "shared" ? Prefix::Shared : Prefix::Method;
  const std::pair<const char*, bool> needs[] = {
      {"method", method != "side"}, // a side network learns beside such a program
      {"optimizer", out.optimizer.empty() != out.has_gradients},
      {"accumulates", out.has_gradients || !out.accumulates},
      {"label_weights", out.has_gradients || !out.has_label_weights},
      {"q", !out.has_gradients || out.q == 1},
      {"state", !out.is_dual || !out.has_gradients},
      {"state_access", out.is_host == (access == "inputs") && !(out.is_dual && out.returns_state)},
      {"hidden_size", out.prefix != Prefix::Method || out.hidden_size > 0},
      {"lr", out.lr >= 0},
  };
  for (const auto& [name, is_right] : needs) {
    if (!is_right) {
      return damaged(name);
    }
  }
  if (out.returns_state && out.has_gradients) {
    return fail(
        Error::InvalidProgram,
        "this driver cannot train a program that keeps gradients and state on a device: use prgec run");
  }
  return Error::Ok;
}

// Products of any two sizes stay below 2^63, those of these do not exhaust memory.
Error check_elements(const Manifest& out) {
  if (out.num_rows() > kMaxElements / std::max(out.seq_len, out.num_labels)) {
    return damaged("batch size");
  }
  if (out.batch_size * out.seq_len > kMaxElements / std::max(out.hidden_size, int64_t{1})) {
    return damaged("hidden_size");
  }
  return Error::Ok;
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
    if (!is_number(number)) {
      return damaged("update");
    }
    read(number, *field);
  }
  return Error::Ok;
}

Error read_sites(const Json& json, Manifest& out) {
  for (const Json& item : json["sites"].items) {
    PRGE_TRY(check_fields(item, kSiteFields));
    Site site;
    site.name = item["name"].text;
    read(item["index"], site.index);
    read(item["out_features"], site.out_features);
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
  PRGE_TRY(check_fields(json, kManifestFields));
  read_fields(json, out);
  PRGE_TRY(read_choices(json, out));
  PRGE_TRY(check_elements(out));
  PRGE_TRY(read_update(json, out));
  PRGE_TRY(read_sites(json, out));
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
