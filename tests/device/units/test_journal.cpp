// A written journal is read again; every damaged tail is cut where its damage begins.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "check.h"
#include "journal_reader.h"
#include "journal_writer.h"

using prge::Error;
using prge::JournalReader;
using prge::Record;
using prge::RecordKind;

static Record step_record(uint64_t step) {
  Record record;
  record.step = step;
  record.lr = 0.5, record.eps = 0.25;
  record.losses = {1.0, 2.0, 3.0, 4.0};
  record.g = {static_cast<float>(step), -1.5f};
  return record;
}

static Record other_record(RecordKind kind, uint64_t step) {
  Record record;
  record.kind = kind;
  record.step = step;
  record.loss = 2.5, record.accuracy = NAN, record.num_examples = 9;
  record.state.bytes[31] = 7;
  return record;
}

static std::string write(const char* name, const std::vector<Record>& records) {
  prge::JournalHeader header;
  header.q = 2, header.batch_size = 3, header.seed = -5, header.steps = 10;
  header.lr = 1e-3, header.eps = 1e-2, header.schedule = "linear+3", header.estimator = "norm";
  header.rows_crc = 0xdeadbeef, header.max_g = 4, header.policies = 3;
  const std::string path = check::scratch(name);
  prge::JournalWriter writer;
  CHECK(writer.create(path, header) == Error::Ok);
  for (const Record& record : records) {
    CHECK(writer.write(record) == Error::Ok);
  }
  return path;
}

static int count(const std::string& path) {
  auto reader = JournalReader::open(path);
  int found = 0;
  for (Record record; reader.ok() && (*reader)->next(record);) {
    ++found;
  }
  return reader.ok() ? found : -1;
}

// Changes one byte, `at` from the start or, where negative, from the end.
static void damage(const std::string& path, off_t at) {
  const int file = ::open(path.c_str(), O_RDWR);
  const off_t place = at < 0 ? ::lseek(file, at, SEEK_END) : at;
  char byte = 0;
  CHECK(::pread(file, &byte, 1, place) == 1);
  byte ^= 0x10;
  CHECK(::pwrite(file, &byte, 1, place) == 1);
  ::close(file);
}

TEST(what_was_written_is_read) {
  const std::string path = write(
      "whole",
      {step_record(1), other_record(RecordKind::Evaluation, 1), step_record(2), other_record(RecordKind::State, 2)});
  auto reader = JournalReader::open(path);
  CHECK(reader.ok());
  CHECK((*reader)->header().seed == -5 && (*reader)->header().schedule == "linear+3");
  CHECK((*reader)->header().rows_crc == 0xdeadbeef && (*reader)->header().policies == 3);
  Record record;
  CHECK((*reader)->next(record) && record.losses == step_record(1).losses && record.g == step_record(1).g);
  CHECK((*reader)->next(record) && record.num_examples == 9 && std::isnan(record.accuracy));
  CHECK((*reader)->next(record) && (*reader)->next(record) && record.state.bytes[31] == 7);
  CHECK(!(*reader)->next(record) && (*reader)->place() == (*reader)->size());
}

TEST(a_damaged_tail_is_cut) {
  std::string path = write("tail", {step_record(1), step_record(2), step_record(3)});
  damage(path, -1);
  CHECK(count(path) == 2);
  path = write("torn", {step_record(1), step_record(2)});
  CHECK(::truncate(path.c_str(), 176 + 72 + 8 + 5) == 0);
  CHECK(count(path) == 1);
  prge::JournalWriter writer;
  CHECK(writer.append_to(path, 176 + 72) == Error::Ok && writer.write(step_record(2)) == Error::Ok);
  CHECK(count(path) == 2);
}

TEST(records_out_of_order_or_without_numbers_end_it) {
  CHECK(count(write("gap", {step_record(1), step_record(3)})) == 1);
  CHECK(count(write("early", {step_record(1), other_record(RecordKind::State, 2)})) == 1);
  Record bad = step_record(2);
  bad.g[1] = NAN;
  CHECK(count(write("nan", {step_record(1), bad, step_record(2)})) == 1);
  // Nobody applies the norm of a gradient.
  bad.eps = 0;
  CHECK(count(write("norm", {step_record(1), bad, step_record(3)})) == 3);
}

TEST(a_damaged_header_is_refused) {
  const std::string path = write("header", {});
  damage(path, 40);
  CHECK(count(path) == -1);
  CHECK(std::string(prge::last_error()).find("the journal's header is damaged") == 0);
  damage(path, 0);
  CHECK(count(path) == -1 && std::string(prge::last_error()).find("not a journal") == 0);
  CHECK(::truncate(path.c_str(), 100) == 0);
  CHECK(count(path) == -1 && std::string(prge::last_error()).find("not a journal") == 0);
}
