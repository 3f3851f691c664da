#include "answer_writer.h"

#include <algorithm>
#include <utility>

#include "fail.h"

namespace prge {

AnswerWriter::AnswerWriter(Program& program, uint32_t max_tokens, std::vector<uint32_t> ends)
    : program_(program), reader_(program), max_tokens_(max_tokens), ends_(std::move(ends)) {
  reader_.forget();
}

Error AnswerWriter::write(std::vector<OpenText>& texts) {
  const auto rows = static_cast<size_t>(std::max<int64_t>(1, program_.manifest().rollouts));
  next_ = 0;
  open_.clear();
  free_.clear();
  for (size_t row = 0; row < rows; ++row) {
    free_.push_back(row);
  }
  do {
    PRGE_TRY(enter(texts));
    PRGE_TRY(open_.empty() ? Error::Ok : decode(texts));
  } while (!open_.empty() || next_ < texts.size());
  return Error::Ok;
}

Error AnswerWriter::enter(std::vector<OpenText>& texts) {
  while (!free_.empty() && next_ < texts.size()) {
    OpenText& text = texts[next_];
    if (last_prompt_ == nullptr || *last_prompt_ != *text.prompt || program_.manifest().rollouts == 0) {
      PRGE_TRY(reader_.check(*text.prompt));
      const auto logits = reader_.read(*text.prompt);
      PRGE_TRY(logits.error());
      last_prompt_ = text.prompt;
      last_logits_.assign(*logits, *logits + program_.manifest().vocab_size);
    }
    take(text, last_logits_.data());
    if (!is_whole(text)) {
      if (program_.manifest().rollouts != 0) {
        PRGE_TRY(program_.fork(free_.front(), text.prompt->size()));
      }
      open_[free_.front()] = next_;
      free_.pop_front();
    }
    ++next_;
  }
  return Error::Ok;
}

Error AnswerWriter::decode(std::vector<OpenText>& texts) {
  const int64_t rows = program_.manifest().rollouts, vocab_size = program_.manifest().vocab_size;
  const float* logits = nullptr;
  if (rows == 0) {
    const OpenText& text = texts[open_.begin()->second];
    std::vector<uint32_t> whole = *text.prompt;
    whole.insert(whole.end(), text.ids.begin(), text.ids.end());
    const auto found = reader_.read(whole);
    PRGE_TRY(found.error());
    logits = *found;
  } else {
    // Rows without a text read token 0 at their beginning, which the next text's prompt overwrites.
    std::vector<int64_t> tokens(static_cast<size_t>(rows)), starts(static_cast<size_t>(rows));
    for (const auto& [row, number] : open_) {
      tokens[row] = texts[number].ids.back();
      starts[row] = static_cast<int64_t>(texts[number].prompt->size() + texts[number].ids.size()) - 1;
    }
    const auto found = program_.decode(tokens, starts);
    PRGE_TRY(found.error());
    logits = *found;
  }
  for (auto each = open_.begin(); each != open_.end();) {
    const auto [row, number] = *each;
    const float* its = logits + static_cast<int64_t>(row) * vocab_size;
    PRGE_TRY(check_finite(its, vocab_size));
    take(texts[number], its);
    if (is_whole(texts[number])) {
      free_.push_back(row);
      each = open_.erase(each);
    } else {
      ++each;
    }
  }
  return Error::Ok;
}

void AnswerWriter::take(OpenText& text, const float* logits) {
  text.ids.push_back(text.sampler.choose(logits, static_cast<uint32_t>(program_.manifest().vocab_size)));
}

bool AnswerWriter::is_whole(const OpenText& text) const {
  const bool is_full = text.prompt->size() + text.ids.size() > static_cast<size_t>(program_.manifest().context);
  return is_full || text.ids.size() >= max_tokens_ || std::count(ends_.begin(), ends_.end(), text.ids.back()) != 0;
}

} // namespace prge
