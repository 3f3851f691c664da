#include "check.h"
#include "manifest.h"

using prge::Manifest;

static const std::string kGood =
    R"({"q": 2, "batch_size": 3, "seq_len": 16, "num_labels": 2, "vocab_size": 100, "rank": 4,
 "pad_token_id": 0, "hidden_size": 8, "dynamic_seq_len": true, "state": "seeded", "model": "m", "backend": "xnnpack",
 "architecture": "a", "quantize": "none", "pipeline": "p", "base_sha256": "ab", "a_sha256": "", "data_sha256": "",
 "alpha": 8, "a_seed": 1, "sites": [{"name": "layers.0.q", "index": 5, "in_features": 4, "out_features": 8}]})";

// The good one with a text replaced.
static std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  CHECK(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

static bool is_refused(const std::string& text, const char* message) {
  return Manifest::parse(text).error() == prge::Error::InvalidProgram &&
      std::string(prge::last_error()).find(message) != std::string::npos;
}

TEST(a_good_one_is_read) {
  const auto found = Manifest::parse(kGood);
  CHECK(found.ok() && found->num_rows() == 12 && found->num_distinct_rows() == 12 && found->is_dynamic);
  CHECK(found->sites[0].state_name() == "layers.0.q.lora_B" && found->sites[0].index == 5);
  CHECK(found->alpha == "8.0");
  const auto shared = Manifest::parse(with("\"state\"", "\"prefix\": \"shared\", \"state\""));
  CHECK(shared.ok() && shared->num_distinct_rows() == 3);
}

TEST(a_cache_has_as_many_positions_as_it_says) {
  CHECK(Manifest::parse(kGood)->context == 0);
  CHECK(Manifest::parse(with("\"state\"", "\"context\": 40, \"state\""))->context == 40);
  CHECK(is_refused(with("\"state\"", "\"context\": -1, \"state\""), "no usable context:"));
  CHECK(is_refused(with("\"state\"", "\"context\": 9999999999, \"state\""), "no usable context:"));
}

TEST(a_run_that_names_no_rate_takes_the_one_it_says) {
  CHECK(Manifest::parse(kGood)->lr == 3e-3);
  CHECK(Manifest::parse(with("\"state\"", "\"lr\": 0.001, \"state\""))->lr == 1e-3);
  CHECK(is_refused(with("\"state\"", "\"lr\": -1, \"state\""), "no usable lr:"));
  CHECK(is_refused(with("\"state\"", "\"lr\": \"0.1\", \"state\""), "no usable lr:"));
  CHECK(is_refused(with("\"state\"", "\"lr\": 1e999, \"state\""), "no usable lr:"));
}

TEST(an_adapter_is_bound_to_the_base_not_to_the_models_name) {
  const auto found = Manifest::parse(kGood), renamed = Manifest::parse(with("\"m\"", "\"other\""));
  const auto other = Manifest::parse(with("\"ab\"", "\"cd\""));
  CHECK(found->identity() == renamed->identity());
  CHECK(!(found->identity() == other->identity()));
  CHECK(
      found->adapter_metadata(true) ==
      R"({"a_seed":"1","alpha":"8.0","base_sha256":"ab","contract":"1","format":"prgec-lora-fa","model":"m","rank":"4",)"
      R"("targets":"[[\"layers.0.q\", 5]]"})");
}

TEST(a_host_knows_what_to_do_with_gradients) {
  std::string text = with("\"seeded\"", "\"host\", \"state_access\": \"inputs\"");
  const auto by_losses = Manifest::parse(text);
  CHECK(by_losses.ok() && by_losses->is_host && !by_losses->is_dual && !by_losses->returns_state);
  CHECK(is_refused(with("\"seeded\"", "\"host\""), "no usable state_access:"));
  CHECK(is_refused(with("\"state\"", "\"state_access\": \"inputs\", \"state\""), "no usable state_access:"));
  text.replace(text.find("\"q\": 2"), 6, "\"q\": 1, \"method\": \"exact\", \"optimizer\": \"norm\"");
  CHECK(is_refused(text, "no usable update:"));
  const std::string rule = "\"update\": {\"clip\": 0.5, \"beta1\": 0.9, \"beta2\": 0.99, \"eps\": 1e-8, \"decay\": 0, "
                           "\"polyak\": 0.2}, \"q\"";
  text.replace(text.find("\"q\""), 3, rule);
  const auto found = Manifest::parse(text);
  CHECK(found.ok() && found->update.clip == 0.5 && found->update.eps == 1e-8 && found->update.polyak == 0.2);
}

TEST(a_program_with_gradients_takes_its_batch_once) {
  const std::string gradients = "\"method\": \"exact\", \"optimizer\": \"adamw\", \"state\"";
  CHECK(is_refused(with("\"state\"", gradients), "no usable q:"));
  std::string text = with("\"state\"", gradients);
  text.replace(text.find("\"q\": 2"), 6, "\"q\": 1");
  const auto found = Manifest::parse(text);
  CHECK(found.ok() && found->has_gradients && found->optimizer == "adamw");
  CHECK(found->num_rows() == 3 && found->num_distinct_rows() == 3);
  CHECK(!Manifest::parse(kGood)->has_gradients);
  CHECK(!found->accumulates);
  std::string gathers = text;
  gathers.insert(gathers.find("\"q\""), "\"accumulates\": true, ");
  CHECK(Manifest::parse(gathers)->accumulates);
  CHECK(is_refused(with("\"state\"", "\"accumulates\": true, \"state\""), "no usable accumulates:"));
  std::string kept = text;
  kept.replace(kept.find("\"state\""), 7, "\"state_access\": \"outputs\", \"state\"");
  CHECK(is_refused(kept, "keeps gradients and state on a device: use prgec run"));
  text.replace(text.find("seeded"), 6, "dual");
  CHECK(is_refused(text, "no usable state:"));
}

TEST(a_that_was_given_is_part_of_what_an_adapter_belongs_to) {
  const auto drawn = Manifest::parse(kGood),
             given = Manifest::parse(with("\"a_sha256\": \"\"", "\"a_sha256\": \"ff\""));
  CHECK(given.ok() && given->a_sha256 == "ff" && drawn->a_sha256.empty());
  const std::string seed = "\"a_seed\":\"" + given->a_seed + "\",";
  CHECK(given->adapter_metadata(false).find(seed + "\"a_sha256\":\"ff\",\"alpha\":") == 1);
  CHECK(drawn->adapter_metadata(false).find(seed + "\"alpha\":") == 1);
  CHECK(!(given->identity() == drawn->identity()));
}

TEST(fields_that_make_no_sense_are_named) {
  CHECK(is_refused(with("\"state\"", "\"method\": \"other\", \"state\""), "no usable method:"));
  CHECK(is_refused(with("\"state\"", "\"method\": \"exact\", \"state\""), "no usable optimizer:"));
  CHECK(is_refused(with("\"state\"", "\"optimizer\": \"norm\", \"state\""), "no usable optimizer:"));
  CHECK(is_refused("{", "is not valid JSON"));
  CHECK(is_refused(with("\"q\": 2", "\"q\": 0"), "no usable q:"));
  CHECK(is_refused(with("\"rank\": 4", "\"rank\": \"4\""), "no usable rank:"));
  CHECK(is_refused(with("\"dynamic_seq_len\": true", "\"dynamic_seq_len\": 1"), "no usable dynamic_seq_len:"));
  CHECK(is_refused(with("seeded", "other"), "no usable state:"));
  CHECK(is_refused(with("\"state\"", "\"prefix\": \"odd\", \"state\""), "no usable prefix:"));
  CHECK(is_refused(with("\"seeded\"", "\"seeded|dual\""), "no usable state:"));
  CHECK(is_refused(with("\"seeded\"", "\"seeded\\u0000\""), "no usable state:"));
  CHECK(is_refused(with("\"in_features\": 4, ", ""), "no usable in_features:"));
  CHECK(is_refused(with("\"pipeline\": \"p\", ", ""), "no usable pipeline:"));
  CHECK(is_refused(with("\"index\": 5", "\"index\": -1"), "no usable index:"));
  CHECK(is_refused(with("\"alpha\": 8", "\"alpha\": \"8\""), "no usable alpha:"));
}

TEST(products_of_sizes_are_bounded) {
  CHECK(is_refused(with("2, \"batch_size\": 3", "65536, \"batch_size\": 1048576"), "no usable batch size:"));
  CHECK(is_refused(with("\"out_features\": 8", "\"out_features\": 2147483648"), "no usable rank:"));
}

TEST(names_are_utf8) {
  CHECK(is_refused(with("layers.0.q", "layers.\xff.q"), "is not valid JSON"));
  CHECK(Manifest::parse(with("layers.0.q", "layers.\\u001b.q")).ok());
}
