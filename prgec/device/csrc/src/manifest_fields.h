// Rules of the fields of a manifest. Written by tools/manifest_table.py from prgec/core/contract/manifest.py.
#pragma once

#include <cstdint>

namespace prge {

enum class FieldKind { Text, Texts, Flag, Integer, Number, Table };

struct FieldRule {
  const char* name;
  FieldKind kind;
  bool is_required;
  int64_t low, high; // of integers
  const char* choices; // of texts, each between bars; empty for any
};

// clang-format off
constexpr FieldRule kManifestFields[] = {
    {"model", FieldKind::Text, true, 0, 0, ""},
    {"architecture", FieldKind::Text, true, 0, 0, ""},
    {"backend", FieldKind::Text, true, 0, 0, ""},
    {"q", FieldKind::Integer, true, 1, 65536, ""},
    {"batch_size", FieldKind::Integer, true, 1, 1048576, ""},
    {"seq_len", FieldKind::Integer, true, 1, 1048576, ""},
    {"dynamic_seq_len", FieldKind::Flag, true, 0, 0, ""},
    {"num_labels", FieldKind::Integer, true, 1, 1048576, ""},
    {"vocab_size", FieldKind::Integer, true, 1, 2147483648, ""},
    {"rank", FieldKind::Integer, true, 1, 1048576, ""},
    {"alpha", FieldKind::Number, true, 0, 0, ""},
    {"a_seed", FieldKind::Integer, true, 0, 9223372036854775807, ""},
    {"state", FieldKind::Text, true, 0, 0, "|seeded|dual|host|"},
    {"quantize", FieldKind::Text, true, 0, 0, ""},
    {"pipeline", FieldKind::Text, true, 0, 0, ""},
    {"base_sha256", FieldKind::Text, true, 0, 0, ""},
    {"versions", FieldKind::Table, false, 0, 0, ""},
    {"pad_token_id", FieldKind::Integer, false, 0, 2147483648, ""},
    {"quantize_embedding", FieldKind::Integer, false, 0, 8, ""},
    {"prefix", FieldKind::Text, false, 0, 0, "|none|shared|method|"},
    {"hidden_size", FieldKind::Integer, false, 0, 1048576, ""},
    {"state_access", FieldKind::Text, false, 0, 0, "|buffers|outputs|inputs|"},
    {"data_sha256", FieldKind::Text, false, 0, 0, ""},
    {"generate", FieldKind::Flag, false, 0, 0, ""},
    {"a_sha256", FieldKind::Text, false, 0, 0, ""},
    {"soc", FieldKind::Text, false, 0, 0, ""},
    {"prefix_sha256", FieldKind::Text, false, 0, 0, ""},
    {"config", FieldKind::Text, false, 0, 0, ""},
    {"method", FieldKind::Text, false, 0, 0, "|prge|exact|shortcut|side|"},
    {"optimizer", FieldKind::Text, false, 0, 0, "||norm|momentum|adamw|"},
    {"accumulates", FieldKind::Flag, false, 0, 0, ""},
    {"label_weights", FieldKind::Flag, false, 0, 0, ""},
    {"planned_bytes", FieldKind::Integer, false, 0, 9223372036854775807, ""},
    {"has_checksums", FieldKind::Flag, false, 0, 0, ""},
    {"num_blocks", FieldKind::Integer, false, 0, 65536, ""},
    {"update", FieldKind::Table, false, 0, 0, ""},
    {"context", FieldKind::Integer, false, 0, 1048576, ""},
    {"lr", FieldKind::Number, false, 0, 0, ""},
    {"answers", FieldKind::Texts, false, 0, 0, ""},
    {"prompts_sha256", FieldKind::Text, false, 0, 0, ""},
    {"rollouts", FieldKind::Integer, false, 0, 1048576, ""},
};

constexpr FieldRule kSiteFields[] = {
    {"name", FieldKind::Text, true, 0, 0, ""},
    {"index", FieldKind::Integer, true, 0, 4294967295, ""},
    {"in_features", FieldKind::Integer, true, 1, 2147483648, ""},
    {"out_features", FieldKind::Integer, true, 1, 2147483648, ""},
};
// clang-format on

} // namespace prge
