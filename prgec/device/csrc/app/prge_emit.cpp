// prge_emit: run a frozen program once over tokenised rows and write shards that a side network is learnt from.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "device_key.h"
#include "emitting_program.h"
#include "fail.h"
#include "files.h"
#include "privacy.h"
#include "quiet.h"
#include "shard.h"

namespace {

using prge::Error;

constexpr char kUsage[] = "Usage: prge_emit PROGRAM --rows FILE --key FILE --out DIR [options]\n"
                          "\n"
                          "  --rows FILE      rows made by prgec tokenize for this program\n"
                          "  --key FILE       the device's key, 32 bytes\n"
                          "  --out DIR        folder of shards\n"
                          "  --dtype NAME     what activations travel as, f16 or i8 [f16]\n"
                          "  --y-pre NAME     what a network adds to: scores of the candidates, or of a secret head\n"
                          "                   [candidates]\n"
                          "  --label-dp EPS   keep labels with the probability of label differential privacy\n"
                          "  --shard-rows N   most rows of a shard [256]\n"
                          "  --no-verify      do not compare the program with its checksums\n";
constexpr char kSecret[] = "secret", kCandidates[] = "candidates";
// Targets of a classifier that gives a score are thousandths of it.
constexpr double kScoreUnit = 1e-3;

struct Options {
  std::string program, rows, key, out, dtype = "f16", y_pre = kCandidates, label_dp, shard_rows = "256";
  bool verify = true;
};

bool parse(int argc, char** argv, Options& out) {
  const struct {
    const char* name;
    std::string* field;
  } flags[] = {
      {"--rows", &out.rows},
      {"--key", &out.key},
      {"--out", &out.out},
      {"--dtype", &out.dtype},
      {"--y-pre", &out.y_pre},
      {"--label-dp", &out.label_dp},
      {"--shard-rows", &out.shard_rows}};
  for (int i = 1; i < argc; ++i) {
    const auto* flag = std::find_if(
        std::begin(flags), std::end(flags), [&](const auto& each) { return std::strcmp(each.name, argv[i]) == 0; });
    if (std::strcmp(argv[i], "--no-verify") == 0) {
      out.verify = false;
    } else if (flag != std::end(flags) && i + 1 < argc) {
      *flag->field = argv[++i];
    } else if (argv[i][0] != '-' && out.program.empty()) {
      out.program = argv[i];
    } else {
      return false;
    }
  }
  const bool has_all = !out.program.empty() && !out.rows.empty() && !out.key.empty() && !out.out.empty();
  const bool has_names =
      (out.dtype == "f16" || out.dtype == "i8") && (out.y_pre == kCandidates || out.y_pre == kSecret);
  return has_all && has_names && std::atol(out.shard_rows.c_str()) > 0;
}

class Emitter {
 public:
  Emitter(prge::EmittingProgram& program, const prge::Rows& rows, const prge::DeviceKey& key, const Options& options)
      : program_(program), rows_(rows), key_(key), ids_(key), options_(options) {
    shape_ = {program.hash(),  options.y_pre,         program.num_blocks(),
              program.width(), rows.num_candidates(), options.dtype == "i8"};
  }

  Error run() {
    const auto num_classes = static_cast<size_t>(shape_.num_classes);
    if (!options_.label_dp.empty()) {
      auto response = prge::RandomisedResponse::parse(options_.label_dp, num_classes);
      PRGE_TRY(response.error());
      response_ = std::move(*response);
    }
    if (options_.y_pre == kSecret) {
      head_.emplace(key_, num_classes, static_cast<size_t>(shape_.width));
    }
    const size_t total = rows_.num_examples();
    const size_t size = shape_.rows_that_fit(static_cast<size_t>(std::atol(options_.shard_rows.c_str())));
    PRGE_TRY(prge::make_folder(options_.out));
    PRGE_TRY(prge::keep_local(options_.out, options_.y_pre, response_ ? response_->epsilon() : ""));
    size_t num_new = 0, number = 0;
    for (size_t first = 0; first < total; first += size, ++number) {
      bool is_new = false;
      PRGE_TRY(shard(number, first, std::min(first + size, total), is_new));
      num_new += is_new;
    }
    std::printf("%s  %zu rows in %zu shards, %zu of them new\n", options_.out.c_str(), total, number, num_new);
    return Error::Ok;
  }

 private:
  Error shard(size_t number, size_t first, size_t end, bool& is_new) {
    prge::Shard found;
    for (size_t example = first; example < end; ++example) {
      found.ids.push_back(ids_.next(rows_.row(static_cast<uint32_t>(example), 0)));
    }
    char name[40];
    std::snprintf(name, sizeof(name), "/shard-%05zu.safetensors", number);
    const std::string path = options_.out + name;
    if (prge::is_file(path)) {
      return same(path, found.ids);
    }
    PRGE_TRY(fill(found, first, end));
    const auto packed = found.pack(shape_);
    PRGE_TRY(packed.error());
    prge::AtomicFile file(path);
    PRGE_TRY(file.open());
    PRGE_TRY(file.write(packed->data(), packed->size()));
    is_new = true;
    return file.commit();
  }

  // Files appear whole: one of these rows is done, any other is somebody else's.
  Error same(const std::string& path, const std::vector<prge::RowIds::Id>& ids) const {
    const auto file = prge::MappedFile::open(path);
    PRGE_TRY(file.error());
    const std::string header = shape_.header(ids.size());
    const size_t at = header.size() + shape_.ids_offset(ids.size());
    const bool is_same = (*file)->size() == header.size() + shape_.body_bytes(ids.size()) &&
        std::memcmp((*file)->data(), header.data(), header.size()) == 0 &&
        std::memcmp((*file)->data() + at, ids.data(), ids.size() * sizeof(ids[0])) == 0;
    return is_same ? Error::Ok
                   : prge::fail(
                         Error::InvalidExternalData,
                         "the folder holds a shard of another program or of other rows (%s). Hint: name another "
                         "folder with --out",
                         path.c_str());
  }

  // Calls take rows of about one length, as the Python driver's do.
  Error fill(prge::Shard& out, size_t first, size_t end) {
    const auto row = [&](size_t example) { return rows_.row(static_cast<uint32_t>(example), 0); };
    const auto width = static_cast<size_t>(shape_.num_blocks * shape_.width);
    const auto num_classes = static_cast<size_t>(shape_.num_classes), size = static_cast<size_t>(program_.batch_size());
    out.acts.resize((end - first) * width);
    out.dy.resize((end - first) * num_classes);
    std::vector<size_t> order(end - first);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(
        order.begin(), order.end(), [&](size_t a, size_t b) { return row(a).num_tokens < row(b).num_tokens; });
    for (size_t at = 0; at < order.size(); at += size) {
      const size_t count = std::min(size, order.size() - at);
      std::vector<prge::Row> batch;
      for (size_t i = 0; i < count; ++i) {
        batch.push_back(row(order[at + i]));
      }
      const float *acts = nullptr, *logits = nullptr;
      PRGE_TRY(program_.run(batch, acts, logits));
      for (size_t i = 0; i < count; ++i) {
        const size_t place = order[at + i] - first;
        std::copy_n(acts + i * width, width, &out.acts[place * width]);
        std::vector<float> scores;
        if (head_) {
          scores = head_->scores(acts + (i + 1) * width - static_cast<size_t>(shape_.width));
        } else {
          PRGE_TRY(read_scores(order[at + i], logits + i * static_cast<size_t>(program_.num_logits()), scores));
        }
        const double right = right_answer(order[at + i], out.ids[place]);
        prge::difference(scores.data(), num_classes, right, &out.dy[place * num_classes]);
      }
    }
    return Error::Ok;
  }

  // The model's scores of the candidates.
  Error read_scores(size_t example, const float* logits, std::vector<float>& scores) const {
    const auto number = static_cast<uint32_t>(example);
    if (shape_.num_classes == 1) {
      scores = {logits[0]};
      return Error::Ok;
    }
    for (uint32_t c = 0; c < rows_.num_candidates(); ++c) {
      const uint32_t token = rows_.row(number, c).targets[0];
      if (token >= program_.num_logits()) {
        return prge::fail(Error::InvalidExternalData, "row %u answers by a token or class the program lacks", number);
      }
      scores.push_back(logits[token]);
    }
    return Error::Ok;
  }

  // The answer that is sent, or the score.
  double right_answer(size_t example, const prge::RowIds::Id& id) const {
    const auto number = static_cast<uint32_t>(example);
    if (shape_.num_classes == 1) {
      return rows_.row(number, 0).targets[0] * kScoreUnit;
    }
    const size_t answer = rows_.answer(number);
    return static_cast<double>(response_ ? response_->say(key_, id, answer) : answer);
  }

  prge::EmittingProgram& program_;
  const prge::Rows& rows_;
  const prge::DeviceKey& key_;
  prge::RowIds ids_;
  const Options& options_;
  prge::ShardShape shape_;
  std::optional<prge::RandomisedResponse> response_;
  std::optional<prge::SecretHead> head_;
};

Error emit(const Options& options) {
  const auto rows = prge::Rows::open(options.rows);
  PRGE_TRY(rows.error());
  const auto key = prge::DeviceKey::open(options.key);
  PRGE_TRY(key.error());
  const auto program = prge::EmittingProgram::open(options.program, options.verify);
  PRGE_TRY(program.error());
  PRGE_TRY((*program)->check(**rows));
  return Emitter(**program, **rows, *key, options).run();
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  quiet_executorch();
  if (emit(options) != Error::Ok) {
    std::fprintf(stderr, "error: %s\n", prge::last_error());
    return 1;
  }
  return 0;
}
