// Writes a few small inputs for each fuzz target: make_seeds FOLDER makes FOLDER/TARGET/N.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "headwise/io.h"
#include "support/zip_builder.h"

namespace {

namespace fs = std::filesystem;
using namespace headwise;

class Seeds {
 public:
  explicit Seeds(fs::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& target, const std::string& bytes) {
    fs::create_directories(folder_ / target);
    const std::string name = std::to_string(count_++);
    std::ofstream(folder_ / target / name, std::ios::binary) << bytes;
  }
  // What `save` writes to the path that it is given.
  template <typename F>
  std::string written(F&& save) {
    fs::create_directories(folder_);
    const fs::path path = folder_ / "scratch";
    save(path.string());
    std::stringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    fs::remove(path);
    return bytes.str();
  }

 private:
  fs::path folder_;
  std::size_t count_ = 0;
};

void add_tensor_files(Seeds& seeds) {
  const float x[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<std::vector<NamedView>> sets = {{},
                                                    {{"", {x, {2}}}},
                                                    {{"in_proj_weight", {x, {6, 2}}},
                                                     {"in_proj_bias", {x, {6}}},
                                                     {"out_proj.weight", {x, {2, 2}}},
                                                     {"out_proj.bias", {x, {2}}}},
                                                    {{"a.self.query.weight", {x, {2, 2}}},
                                                     {"a.self.key.weight", {x, {2, 2}}},
                                                     {"a.self.value.weight", {x, {2, 2}}},
                                                     {"a.output.dense.weight", {x, {2, 2}}}},
                                                    {{"\u00e4\n", {x, DType::u8, {3}}},
                                                     {"b", {x, DType::f64, {}}},
                                                     {"c", {x, DType::bf16, {0}}}}};
  for (const std::vector<NamedView>& tensors : sets) {
    const std::string safetensors = seeds.written([&](const std::string& path) {
      save_safetensors(path, tensors, {{"format", "pt"}});
    });
    const std::string npz =
        seeds.written([&](const std::string& path) { save_npz(path, tensors); });
    seeds.add("safetensors_fuzz", safetensors);
    seeds.add("npz_fuzz", npz);
    seeds.add("tensor_file_fuzz", safetensors);
    seeds.add("tensor_file_fuzz", npz);
  }
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 0, 5}}) {
    const std::string npy = seeds.written([&](const std::string& path) {
      save_npy(path, {x, shape});
    });
    seeds.add("npy_fuzz", npy);
    seeds.add("tensor_file_fuzz", npy);
  }
}

std::string le16(unsigned value) {
  return {static_cast<char>(value & 0xffu), static_cast<char>(value >> 8)};
}

void add_headers(Seeds& seeds) {
  const std::vector<std::pair<std::string, unsigned>> headers = {
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8},
      {R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},)"
       R"("b":{"x":[{}],"dtype":"U64","shape":[],"data_offsets":[1,9]}})",
       9},
      {R"({"__metadata__":{"k":"v","k":"\u00e4"}})", 0}};
  for (const auto& [header, data_bytes] : headers) {
    seeds.add("safetensors_fuzz", header + le16(data_bytes));
    seeds.add("json_events_fuzz", header);
  }
  seeds.add("json_events_fuzz",
            R"([null,true,false,-1,2.5e-3,18446744073709551615,"\ud83d\ude00"])");
  for (const char* dict :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
        "{'descr': '>u8', 'fortran_order': True, 'shape': (0L,)}",
        "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': ()}", "{\"descr\": [('a', 'O')]}"})
    seeds.add("npy_fuzz", dict);
}

// As zip tools write that do not know the size beforehand, with all that may be there.
void add_deflated(Seeds& seeds) {
  test::ZipBuilder zip;
  test::ZipMember member("x.npy", test::floats_npy(40), true);
  member.zip64 = member.sizes_behind = true;
  member.comment = "comment";
  member.entry_extra = member.local_extra = test::le(0x5455, 2) + test::le(1, 2) + "x";
  zip.add(member);
  zip.add({"y.npy", test::floats_npy(3)});
  for (const std::string& bytes : {zip.finish("comment"), zip.finish64()}) {
    seeds.add("npz_fuzz", bytes);
    seeds.add("tensor_file_fuzz", bytes);
  }
}

void add_texts(Seeds& seeds) {
  seeds.add("model_config_fuzz",
            R"({"model_type":"bert","vocab_size":30,"hidden_size":8,"num_hidden_layers":1,)"
            R"("num_attention_heads":2,"intermediate_size":16,"max_position_embeddings":32,)"
            R"("type_vocab_size":2,"hidden_act":"gelu","layer_norm_eps":1e-12})");
  seeds.add("model_config_fuzz",
            R"({"do_lower_case":true,"strip_accents":null,"tokenize_chinese_chars":true,)"
            R"("unk_token":"[UNK]","cls_token":{"content":"[CLS]"}})");
  seeds.add("model_config_fuzz", "[UNK]\r\n[CLS]\n[SEP]\r\n\n##a");
  seeds.add("tokenizer_fuzz",
            "\x7fhe\n##llo\nw\n\nHello, w\u00f6rld \u4e2d\u6587 [SEP] \U0001f600");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "make_seeds FOLDER\n";
    return 2;
  }
  Seeds seeds(argv[1]);
  add_tensor_files(seeds);
  add_headers(seeds);
  add_deflated(seeds);
  add_texts(seeds);
}
