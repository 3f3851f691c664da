#include "program.h"

#include <optional>
#include <utility>

#include "delegates.h"
#include "fail.h"
#include "program_checksums.h"
#include "program_file.h"
#include "program_methods.h"
#include "weight_options.h"

namespace prge {

using executorch::aten::ScalarType;

Program::Program(std::string path, const Settings& settings) : path_(std::move(path)), packed_(settings.warn) {}
Program::~Program() = default;

Result<std::unique_ptr<Program>> Program::open(const std::string& path, const Settings& settings) {
  std::unique_ptr<Program> program(new Program(path, settings));
  PRGE_TRY(program->read(settings.verify));
  if (!settings.packed_weights.empty() && program->manifest_.backend == "xnnpack") {
    program->packed_.open(settings.packed_weights, path, program->manifest_.base_sha256);
  }
  PRGE_TRY(program->load_methods());
  program->packed_.seal();
  PRGE_TRY(program->find_state());
  program->allocate();
  return program;
}

Error Program::read(bool verify) {
  PRGE_TRY(check_envelope(path_));
  std::optional<ProgramChecksums> checksums;
  if (verify) {
    auto found = ProgramChecksums::read(path_);
    PRGE_TRY(found.error());
    checksums = std::move(*found);
    PRGE_TRY(checksums ? checksums->check(path_) : Error::Ok);
  }
  PRGE_TRY(load({}));
  PRGE_TRY(read_constants());
  if (verify && manifest_.has_checksums && !checksums) {
    return fail(
        Error::InvalidProgram, "the program has lost its checksums (%s). Hint: copy or compile it again",
        path_.c_str());
  }
  if (manifest_.data_sha256.empty()) {
    return Error::Ok;
  }
  const auto data_path = find_data(path_, manifest_.data_sha256);
  PRGE_TRY(data_path.error());
  PRGE_TRY(checksums ? checksums->check_data(*data_path) : Error::Ok);
  return load(*data_path);
}

void Program::allocate() {
  const Manifest& m = manifest_;
  tokens_.resize(static_cast<size_t>(m.num_rows() * m.seq_len));
  label_pos_.resize(static_cast<size_t>(m.num_rows() * m.num_labels));
  targets_.resize(static_cast<size_t>(m.num_rows() * m.num_labels));
  weights_.resize(m.has_label_weights ? targets_.size() : 0);
  losses_.resize(static_cast<size_t>(m.num_rows()));
  if (m.prefix == Prefix::Method) {
    hidden_.resize(static_cast<size_t>(m.batch_size * m.seq_len * m.hidden_size));
  }
}

Error Program::load(const std::string& data_path) {
  methods_.reset(new Methods(path_, data_path.empty() ? std::vector<std::string>() : std::vector{data_path}));
  const auto checked = executorch::runtime::Program::Verification::InternalConsistency;
  const Error error = methods_->load(checked);
  return error == Error::Ok
      ? Error::Ok
      : fail(Error::InvalidProgram, "the program is damaged (%s): %s", path_.c_str(), to_string(error));
}

Error Program::load_method(const char* name, std::optional<size_t> num_inputs) {
  PRGE_TRY(check_delegates(*methods_, name, manifest_.backend, path_));
  WeightOptions options;
  if (manifest_.backend == "xnnpack") {
    PRGE_TRY(options.share(packed_.path()));
  }
  if (const Error error = methods_->load_method(name, nullptr, nullptr, options.map()); error != Error::Ok) {
    return fail(
        Error::InvalidProgram, "cannot load method %s (%s): %s. Hint: it was compiled for backend %s", name,
        path_.c_str(), to_string(error), manifest_.backend.c_str());
  }
  const auto meta = methods_->method_meta(name);
  if (!meta.ok() || meta->num_inputs() != num_inputs.value_or(meta->num_inputs())) {
    return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", name, path_.c_str());
  }
  return Error::Ok;
}

Error Program::load_methods() {
  const Manifest& m = manifest_;
  const size_t num_inputs = m.is_host ? 3 + m.sites.size() : m.has_gradients ? (m.accumulates ? 5 : 4) : 8;
  PRGE_TRY(load_method("forward", num_inputs + (m.has_label_weights ? 1 : 0) + num_hidden()));
  if (!m.has_gradients && !m.returns_state && !m.is_host) {
    PRGE_TRY(load_method("apply", 4));
  }
  return num_hidden() != 0 ? load_method("prefix", 1) : Error::Ok;
}

Error Program::find_state() {
  for (const Site& site : manifest_.sites) {
    StateTensor state;
    state.name = site.state_name();
    state.copies = manifest_.is_dual ? 2 * manifest_.q : 1;
    state.shape = {manifest_.rank, site.out_features};
    if (manifest_.returns_state || manifest_.is_host) {
      hold(state);
    } else {
      PRGE_TRY(bind(state));
    }
    sites_.push_back(std::move(state));
  }
  return manifest_.has_gradients ? find_optimizer() : Error::Ok;
}

Error Program::find_optimizer() {
  std::vector<const char*> suffixes;
  if (manifest_.optimizer != "norm") {
    suffixes.push_back("_mean");
  }
  if (manifest_.optimizer == "adamw") {
    suffixes.push_back("_square");
  }
  optimizer_.push_back({"prge_optimizer", nullptr, 1, {kNumFactors}});
  for (const StateTensor& site : sites_) {
    for (const char* suffix : suffixes) {
      optimizer_.push_back({site.name + suffix, nullptr, 1, site.shape});
    }
  }
  for (StateTensor& state : optimizer_) {
    if (manifest_.is_host) {
      hold(state);
    } else {
      PRGE_TRY(bind(state));
    }
  }
  return Error::Ok;
}

// Gives it a place here, of zeros.
void Program::hold(StateTensor& state) {
  held_.emplace_back(static_cast<size_t>(state.numel()), 0.0f);
  state.data = held_.back().data();
}

// Gives it its place in the program.
Error Program::bind(StateTensor& state) {
  const auto tensor = methods_->attribute(state.name);
  if (!tensor.ok() || tensor->scalar_type() != ScalarType::Float || tensor->numel() != state.copies * state.numel()) {
    return fail(
        Error::InvalidProgram, "the program has no state %s as its manifest says (%s)", state.name.c_str(),
        path_.c_str());
  }
  state.data = tensor->mutable_data_ptr<float>();
  return Error::Ok;
}

} // namespace prge
