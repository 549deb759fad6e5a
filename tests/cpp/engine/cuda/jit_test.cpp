// SPDX-License-Identifier: Apache-2.0
// Score functions become machine code without a GPU: by NVRTC, where it is found, and once for all
// processes of a user.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/ampere/launch/score_program.h"
#include "engine/ampere/tables/forward_table.h"
#include "engine/ampere/tables/mask_backward_table.h"
#include "engine/cuda/jit/disk_cache.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/launch/score_program.h"
#include "engine/hopper/tables/backward_table.h"
#include "engine/hopper/tables/mask_backward_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/score_table.h"

namespace fa3 {
namespace {

namespace files = std::filesystem;

class CacheFolder : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fa3-cache-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = std::string(name) + "/kernels";
    setenv("FA3_CACHE_DIR", folder.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("FA3_CACHE_DIR");
    files::remove_all(files::path(folder).parent_path());
  }
  int count() const {
    int found = 0;
    for ([[maybe_unused]] const auto& file : files::directory_iterator(folder)) ++found;
    return found;
  }
  files::path only_file() const { return files::directory_iterator(folder)->path(); }

  std::string folder;
};

using DiskCache = CacheFolder;
using ScoreProgram = CacheFolder;

TEST_F(DiskCache, GivesBackWhatWasStoredUnderTheKeyAlone) {
  const cuda::DiskCache cache(folder);
  std::string code;
  EXPECT_FALSE(cache.load("a", &code));
  cache.store("a", "first");
  cache.store("b", std::string("sec\0nd", 6));
  ASSERT_TRUE(cache.load("a", &code));
  EXPECT_EQ(code, "first");
  ASSERT_TRUE(cache.load("b", &code));
  EXPECT_EQ(code.size(), 6u);
  EXPECT_FALSE(cache.load("c", &code));
  struct stat found {};
  ASSERT_EQ(stat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST_F(DiskCache, TakesNoFileThatIsNotAsItWasWritten) {
  const cuda::DiskCache cache(folder);
  cache.store("key", std::string(1000, 'x'));
  const files::path path = only_file();
  const auto size = int(files::file_size(path));
  std::string code;
  for (int at = 0; at < size; at += 37) {
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(at);
      file.put('!');
    }
    EXPECT_FALSE(cache.load("key", &code)) << at;
    cache.store("key", std::string(1000, 'x'));
    EXPECT_TRUE(cache.load("key", &code));
  }
  for (int bytes = 0; bytes < size; bytes += 61) {
    files::resize_file(path, uintmax_t(bytes));
    EXPECT_FALSE(cache.load("key", &code)) << bytes;
    cache.store("key", std::string(1000, 'x'));
  }
}

TEST_F(DiskCache, TrustsNothingThatOthersMayWrite) {
  const cuda::DiskCache cache(folder);
  std::string code;
  cache.store("key", "code");
  chmod(only_file().c_str(), 0622);
  EXPECT_FALSE(cache.load("key", &code));
  chmod(only_file().c_str(), 0600);
  EXPECT_TRUE(cache.load("key", &code));
  chmod(folder.c_str(), 0777);
  EXPECT_FALSE(cache.load("key", &code));
  const int before = count();
  cache.store("other", "code");
  EXPECT_EQ(count(), before);
  chmod(folder.c_str(), 0700);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(only_file().c_str(), 12345, 12345), 0);
    EXPECT_FALSE(cache.load("key", &code));
  }
  const files::path path = only_file(), aside = path.string() + ".aside";
  files::rename(path, aside);
  files::create_symlink(aside, path);
  EXPECT_FALSE(cache.load("key", &code));
}

TEST_F(DiskCache, KeepsToItsSize) {
  const cuda::DiskCache cache(folder, 10000);
  for (int i = 0; i < 20; ++i) cache.store(std::to_string(i), std::string(1000, 'x'));
  EXPECT_LE(count(), 10);
  EXPECT_GE(count(), 8);
}

TEST_F(DiskCache, ManyProcessesWriteOneKey) {
  const std::string right(200000, 'y');
  for (int child = 0; child < 8; ++child) {
    if (fork() != 0) continue;
    const cuda::DiskCache cache(folder);
    bool all_right = true;
    for (int i = 0; i < 30; ++i) {
      std::string code;
      cache.store("key", right);
      all_right = all_right && (!cache.load("key", &code) || code == right);
    }
    _exit(all_right ? 0 : 1);
  }
  for (int child = 0, status = 0; child < 8; ++child) {
    wait(&status);
    EXPECT_EQ(status, 0);
  }
  std::string code;
  EXPECT_TRUE(cuda::DiskCache(folder).load("key", &code));
  EXPECT_EQ(count(), 1);
}

TEST_F(DiskCache, IsOffWithoutAFolder) {
  const cuda::DiskCache cache("");
  std::string code;
  cache.store("key", "code");
  EXPECT_FALSE(cache.load("key", &code));
}

fa3_score_function function_of(const char* text) {
  fa3_score_function score{};
  score.text = text;
  return score;
}

constexpr hopper::ForwardConfig kSmall = hopper::kScoreTable[0].config;

// Whether there is a compiler; without one the tests of programs have nothing to test.
bool finds_nvrtc() {
  std::string code;
  const Status status = cuda::compile({.architecture = "sm_90a"}, nullptr, &code);
  return status.code() != StatusCode::unsupported;
}

#define FA3_SKIP_WITHOUT_NVRTC() \
  if (!finds_nvrtc()) GTEST_SKIP() << "libnvrtc is not found here; FA3_NVRTC is its path"

bool is_quick() {
  return std::getenv("FA3_TEST_QUICK") != nullptr;
}

// The rows of a table that are compiled, some seconds each: all, or the narrowest and the widest.
template <class Instance, size_t kRows>
std::vector<Instance> tried_rows(const std::array<Instance, kRows>& table) {
  if (is_quick() && kRows > 2) return {table.front(), table.back()};
  return {table.begin(), table.end()};
}

TEST_F(ScoreProgram, CompilesInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  for (const hopper::KernelInstance& row : tried_rows(hopper::kScoreTable)) {
    for (const auto variant : {hopper::Variant::kDense, hopper::Variant::kGeneral}) {
      const auto config = row.config.with(hopper::Element::kFp16, variant);
      std::string code;
      score.may_hide = variant == hopper::Variant::kGeneral;
      const Status status = cuda::find_code(hopper::score_program(score, config), nullptr, &code);
      EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
      EXPECT_EQ(code.substr(1, 3), "ELF");
      if (is_quick()) break;
    }
  }
}

TEST_F(ScoreProgram, CompilesForThreeWarpgroups) {
  FA3_SKIP_WITHOUT_NVRTC();
  const auto score = function_of("using namespace score; return tangent(score) * 3.0f;");
  for (const hopper::KernelInstance& row : tried_rows(hopper::kPureScoreTable)) {
    std::string code;
    const auto config = row.config.with(hopper::Element::kBf16, hopper::Variant::kGeneral);
    const Status status = cuda::find_code(hopper::score_program(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(ScoreProgram, CompilesBackwardsInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) + load<float, 1>(b, kv_idx);");
  score.gradients =
      "add<0>(gradient, h, q_idx); add_for_key<1>(gradient, b, kv_idx); "
      "add_for_tile<2>(gradient * (kv_idx - q_idx), h);";
  const auto compiles = [&](const hopper::BackwardConfig& config) {
    std::string code;
    const Status status = cuda::find_code(hopper::score_program(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
    EXPECT_EQ(code.substr(1, 3), "ELF");
  };
  for (const hopper::BackwardInstance& row : tried_rows(hopper::kBackwardTable)) {
    const auto config = row.config.with(hopper::Element::kFp16, hopper::Variant::kDense);
    compiles(config);
    if (is_quick() || row.config.head_dim != 128) continue;  // minutes otherwise
    compiles(config.deterministic());
    compiles(config.with_head_splits());
    compiles(row.config.with(hopper::Element::kBf16, hopper::Variant::kGeneral));
  }
  score.slope = "return 0.5f * score;";
  for (const hopper::BackwardInstance& row : tried_rows(hopper::kBackwardTable)) {
    if (row.config.splits_dkv()) score.gradients = nullptr;
    compiles(row.config.with(hopper::Element::kBf16, hopper::Variant::kCapped));
  }
}

TEST_F(ScoreProgram, KeepsScoresThatGradientsName) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score * load<float, 0>(h) + load<Bfloat, 1>(q_idx);");
  constexpr char kKeeps[] = "#define FA3_SCORE_KEEPS_SCORES\n";
  const auto config = hopper::kBackwardTable[0].config.with(hopper::Element::kBf16,  //
                                                            hopper::Variant::kCapped);
  const auto keeps = [&](const char* gradients) {
    score.gradients = gradients;
    const bool found = hopper::score_program(score, config).text.find(kKeeps) != std::string::npos;
    EXPECT_EQ(cuda::gradients_name_score(score), found);
    return found;
  };
  EXPECT_FALSE(keeps(nullptr));
  EXPECT_FALSE(keeps("using namespace score; add<1>(gradient, q_idx);"));
  EXPECT_FALSE(keeps("const int my_score = 0, scores = 0; add<1>(score::sign(gradient), q_idx);"));
  EXPECT_TRUE(keeps("using namespace score; add_for_tile<0>(gradient * score, h);"));
  EXPECT_TRUE(keeps("score"));

  score.gradients = "add_for_tile<0>(gradient * score, h); add<1>(gradient, q_idx);";
  score.slope = "return load<float, 0>(h);";
  const auto compiles = [&](const auto& kept) {
    std::string code;
    const Status status = cuda::find_code(hopper::score_program(score, kept), nullptr, &code);
    EXPECT_TRUE(status.ok()) << kept.head_dim << ": " << status.message();
  };
  const bool quick = std::getenv("FA3_TEST_QUICK") != nullptr;
  for (const hopper::BackwardInstance& row : hopper::kBackwardTable) {
    if (row.config.splits_dkv()) continue;
    compiles(row.config.with(hopper::Element::kBf16, hopper::Variant::kCapped));
    if (quick) break;
  }
  compiles(hopper::kMaskBackwardTable[0].config.with(hopper::Element::kFp16,  //
                                                     hopper::Variant::kCapped));
}

TEST_F(ScoreProgram, CompilesBesideBlockMasks) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  std::string code;
  const auto compiles = [&](const auto& config) {
    const Status status = cuda::find_code(hopper::score_program(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
  };
  for (const hopper::KernelInstance& row : tried_rows(hopper::kMaskTable)) {
    compiles(row.config.with(hopper::Element::kBf16, hopper::Variant::kDense));
  }
  compiles(hopper::kMaskTable[0].config.with(hopper::Element::kBf16, hopper::Variant::kGeneral));
  score.gradients = "add<0>(gradient, h, q_idx);";
  for (const hopper::BackwardInstance& row : tried_rows(hopper::kMaskBackwardTable)) {
    const auto config = row.config.with(hopper::Element::kBf16, hopper::Variant::kDense);
    compiles(config);
    compiles(config.deterministic());
  }
  compiles(hopper::kMaskBackwardTable[0].config.with(hopper::Element::kBf16,  //
                                                     hopper::Variant::kGeneral));
  score.slope = "return 0.5f * score;";
  for (const hopper::BackwardInstance& row : tried_rows(hopper::kMaskBackwardTable)) {
    const auto config = row.config.with(hopper::Element::kBf16, hopper::Variant::kCapped);
    EXPECT_TRUE(config.keeps_p() && config.helpers && !config.general());
    compiles(config);
    compiles(config.deterministic());
  }
}

TEST_F(ScoreProgram, LoadsAheadFromTheOnlyTensorOfKeys) {
  FA3_SKIP_WITHOUT_NVRTC();
  constexpr char kOnce[] =
      "return score * load<float, 0>(h) + load_of_key<Half, 3>(kv_idx, q_idx);";
  constexpr char kTwice[] =
      "return score + load_of_key<Half, 1>(kv_idx, h) + load_of_key<Half, 2>(kv_idx, q_idx);";
  const auto c = kSmall.with(hopper::Element::kFp16, hopper::Variant::kGeneral);
  const auto once = hopper::score_program(function_of(kOnce), c);
  const auto twice = hopper::score_program(function_of(kTwice), c);
  EXPECT_NE(once.text.find("#define FA3_SCORE_PAIRS 3\n"), std::string::npos);
  EXPECT_EQ(twice.text.find("FA3_SCORE_PAIRS"), std::string::npos);
  auto hides = function_of(kOnce);
  hides.may_hide = 1;
  EXPECT_NE(once.text.find(".guarded = true"), std::string::npos);
  EXPECT_EQ(hopper::score_program(hides, c).text.find(".guarded = true"), std::string::npos);
  std::string code;
  for (const auto* program : {&once, &twice}) {
    const Status status = cuda::find_code(*program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Of a tensor with an element for each score; which kernels do stands here.
TEST_F(ScoreProgram, LoadsTilesWhereSharedMemoryLasts) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load_of_score<Bfloat, 0>(q_idx, kv_idx, h);");
  score.may_hide = 1;
  const auto compiles = [&](const auto& config) {
    const cuda::Program program = hopper::score_program(score, config, 0);
    EXPECT_NE(program.text.find("#define FA3_SCORE_TILE 0\n"), std::string::npos);
    std::string code;
    const Status status = cuda::find_code(program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
  };
  const auto dense = [](const auto& row) {
    return row.config.with(hopper::Element::kBf16, hopper::Variant::kDense);
  };
  const auto general = [](const auto& row, hopper::Element element) {
    return row.config.with(element, hopper::Variant::kGeneral);
  };
  for (const hopper::KernelInstance& row : hopper::kScoreTable) {
    EXPECT_EQ(hopper::takes_captured_tile(dense(row)), row.config.block_n != 80)
        << row.config.head_dim;
  }
  for (const hopper::KernelInstance& row : hopper::kMaskTable) {
    EXPECT_EQ(hopper::takes_captured_tile(dense(row)), row.config.head_dim == 64);
  }
  for (const hopper::BackwardInstance& row : hopper::kBackwardTable) {
    EXPECT_EQ(hopper::takes_captured_tile(dense(row)), row.config.head_dim <= 128);
  }
  for (const hopper::KernelInstance& row : tried_rows(hopper::kScoreTable)) {
    if (!hopper::takes_captured_tile(dense(row))) continue;
    compiles(dense(row));
    if (!is_quick()) compiles(general(row, hopper::Element::kFp16));
  }
  for (const hopper::KernelInstance& row : tried_rows(hopper::kTileScoreTable)) {
    EXPECT_TRUE(hopper::takes_captured_tile(general(row, hopper::Element::kBf16)));
    compiles(general(row, hopper::Element::kBf16));
  }
  for (const hopper::KernelInstance& row : hopper::kMaskTable) {
    if (row.config.head_dim == 64) compiles(dense(row));
  }
  for (const hopper::BackwardInstance& row : hopper::kBackwardTable) {
    if (row.config.head_dim != 128 && (is_quick() || row.config.head_dim > 128)) continue;
    compiles(dense(row));
    if (is_quick()) continue;
    compiles(dense(row).deterministic());
    compiles(general(row, hopper::Element::kFp16));
  }
  compiles(dense(hopper::kMaskBackwardTable.front()));
  if (!is_quick()) compiles(dense(hopper::kMaskBackwardTable.back()));
  score.slope = "return 0.5f * score;";
  compiles(hopper::kBackwardTable[0].config.with(hopper::Element::kBf16, hopper::Variant::kCapped));
}

TEST_F(ScoreProgram, BeginsWithWhatTheFunctionAdds) {
  FA3_SKIP_WITHOUT_NVRTC();
  constexpr char kText[] =
      "using namespace score;\nconst float x = load_of_score<Bfloat, 0>(q_idx, kv_idx, h);\n"
      "return score + x;\n";
  auto score = function_of(kText);
  constexpr char kAdds[] = "#define FA3_SCORE_ADDS\n", kOnce[] = "#define FA3_SCORE_TILE_ONCE\n";
  fa3_captured_tensor bias{.rank = 3, .shape = {4, 100, 200}, .stride = {20800, 208, 1}};
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto has = [&](const char* line) {
    const auto program = hopper::score_program(score, hopper::kScoreTable[0].config, 0);
    return program.text.find(line) != std::string::npos;
  };
  EXPECT_TRUE(has(kAdds) && has(kOnce));
  const auto compiles = [&](const hopper::KernelInstance& row, hopper::Variant variant) {
    const auto config = row.config.with(hopper::Element::kFp16, variant);
    std::string code;
    const Status status = cuda::find_code(hopper::score_program(score, config, 0), nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
  };
  compiles(hopper::kTileScoreTable[0], hopper::Variant::kGeneral);
  if (std::getenv("FA3_TEST_QUICK") == nullptr) {
    compiles(hopper::kScoreTable[0], hopper::Variant::kDense);
    compiles(hopper::kScoreTable[1], hopper::Variant::kDense);
    score.may_hide = 1;
    compiles(hopper::kMaskTable[0], hopper::Variant::kDense);
  }
  bias.stride[0] = 0;  // heads share it
  EXPECT_TRUE(has(kAdds) && !has(kOnce));
  bias = {.rank = 2, .shape = {100, 200}, .stride = {208, 1}};
  EXPECT_FALSE(has(kOnce));
  // Without tiles there is nothing to begin with.
  const auto without = hopper::score_program(score, hopper::kScoreTable[0].config);
  EXPECT_EQ(without.text.find(kAdds), std::string::npos);
}

TEST(ScoreText, AddsWhereItsOneReturnNamesTheScoreAlone) {
  const auto adds = [](const char* text) { return cuda::adds_to_score(function_of(text)); };
  EXPECT_TRUE(adds("const float x5 = 2.0f * h;\nreturn score + x5;"));
  EXPECT_TRUE(adds("using namespace score;\nconst float score_2 = 1.0f;\nreturn score + score_2;"));
  EXPECT_FALSE(adds("return score;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn x + score;"));
  EXPECT_FALSE(adds("const float x = score;\nreturn score + x;"));
  EXPECT_FALSE(adds("using namespace score;\nconst float x = 2 * score;\nreturn score + x;"));
  EXPECT_FALSE(adds("if (h > 2) return 0.0f;\nconst float x = 1.0f;\nreturn score + x;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn score + x > 0 ? 1 : 0;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn score + x * x;"));
  EXPECT_FALSE(adds("return score + score;"));
}

TEST_F(ScoreProgram, StoresTheGradientOfScores) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor bias{};
  auto score = function_of("return score + load_of_score<Bfloat, 0>(q_idx, kv_idx, h);");
  score.gradients = "";
  score.tensors = &bias;
  score.num_tensors = 1;
  constexpr char kStores[] = "#define FA3_SCORE_STORES\n";
  for (const auto* row :
       {&hopper::kBackwardTable[0], &hopper::kBackwardTable[2], &hopper::kMaskBackwardTable[0]}) {
    const auto config = row->config.with(hopper::Element::kBf16, hopper::Variant::kDense);
    bias.stores_gradient = 1;
    bias.gradient = nullptr;
    EXPECT_EQ(hopper::score_program(score, config, 0).text.find(kStores), std::string::npos);
    float gradient = 0;
    bias.gradient = &gradient;
    const cuda::Program program = hopper::score_program(score, config, 0);
    EXPECT_NE(program.text.find(kStores), std::string::npos);
    std::string code;
    const Status status = cuda::find_code(program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
    bias.stores_gradient = 0;
    EXPECT_EQ(hopper::score_program(score, config, 0).text.find(kStores), std::string::npos);
  }
}

TEST(Captures, AreTilesWhereTmaCanBringThem) {
  fa3_captured_tensor bias{};
  auto score = function_of("return score + load_of_score<Half, 0>(q_idx, kv_idx, h);");
  score.tensors = &bias;
  score.num_tensors = 1;
  bias = {.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
          .rank = 3,
          .shape = {4, 100, 200},
          .stride = {20800, 208, 1}};
  const fa3_captured_tensor good = bias;
  const auto found = [&] { return hopper::find_captured_tile(score, 100, 200); };
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(hopper::find_captured_tile(score, 101, 200), hopper::kNoTile);
  EXPECT_EQ(hopper::find_captured_tile(score, 100, 201), hopper::kNoTile);
  bias.data = reinterpret_cast<const void*>(uintptr_t{0x7008});
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.stride[1] = 204;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.stride[0] = 0;  // one for all heads
  EXPECT_EQ(found(), 0);
  bias = good;
  bias.stride[2] = 2;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.rank = 1;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  score.text = "return score + load_of_key<Half, 0>(kv_idx, h, q_idx);";
  EXPECT_EQ(found(), hopper::kNoTile);
  score.text =
      "return score + load_of_score<Half, 0>(q_idx, kv_idx, h) * load_of_score<Half, 0>(q_idx, "
      "kv_idx, b);";
  EXPECT_EQ(found(), hopper::kNoTile);
  score.text = "return score + load_of_score<Half, 1>(q_idx, kv_idx, h);";
  EXPECT_EQ(found(), hopper::kNoTile);
}

TEST(Captures, HaveAStoredGradientWhereTmaCanStoreIt) {
  fa3_captured_tensor bias{.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
                           .rank = 3,
                           .stores_gradient = 1,
                           .shape = {4, 100, 200},
                           .stride = {20800, 208, 1}};
  auto score = function_of("return score + load_of_score<Half, 0>(q_idx, kv_idx, h);");
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto obstacle = [&] { return hopper::stored_gradient_obstacle(score, 100, 200); };
  EXPECT_EQ(hopper::find_stored_gradient(score), hopper::kNoTile);
  EXPECT_EQ(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
  EXPECT_EQ(hopper::find_stored_gradient(score), 0);
  EXPECT_EQ(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8004});
  EXPECT_NE(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
  bias.shape[2] = 204;
  EXPECT_NE(obstacle(), nullptr);  // its rows lie one behind the other
  bias.shape[2] = 200;
  score.slope = "return 2.0f;";
  EXPECT_NE(obstacle(), nullptr);
}

TEST(Captures, HavePairsWhereTwoNeighboursLieInOneWord) {
  fa3_captured_tensor t{};
  fa3_score_function score{};
  score.tensors = &t;
  score.num_tensors = 1;
  const auto pairs = [&](uintptr_t address, int64_t row_stride, int64_t key_stride) {
    t.data = reinterpret_cast<const void*>(address);
    t.rank = 2;
    t.shape[0] = 5;
    t.shape[1] = 33;
    t.stride[0] = row_stride;
    t.stride[1] = key_stride;
    return cuda::captures_of(score).tensors[0].extent_of_pairs;
  };
  EXPECT_EQ(pairs(0x7004, 40, 1), 33);
  EXPECT_EQ(pairs(0x7002, 40, 1), 0);
  EXPECT_EQ(pairs(0x7004, 33, 1), 0);
  EXPECT_EQ(pairs(0x7004, 40, 2), 0);
  t.rank = 0;
  EXPECT_EQ(cuda::captures_of(score).tensors[0].extent_of_pairs, 0);
}

// For an A100, and for cards of 99 KB; NVRTC is asked for no more than one program a row.
TEST_F(ScoreProgram, CompilesOnTheAmpereEngineInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  const auto compiles = [&](const auto& config, const cuda::Capability& gpu) {
    std::string code;
    const Status status =
        cuda::find_code(ampere::score_program(score, config, gpu), nullptr, &code);
    EXPECT_TRUE(status.ok()) << config.head_dim << ": " << status.message();
    EXPECT_EQ(code.substr(1, 3), "ELF");
  };
  for (const ampere::KernelInstance& row : ampere::kForwardTable) {
    const ampere::ForwardConfig& c = row.config;
    if (c.dropout || c.quantized) continue;
    compiles(c.with(ampere::Element::kBf16).with_score_function(), {8, 0});
    if (is_quick()) break;
  }
  score.gradients = "add<0>(gradient, h, q_idx); add_for_tile<2>(gradient, h);";
  score.slope = "return 2.0f;";
  const auto of_function = [](const ampere::BackwardConfig& c) {
    return c.with(ampere::Element::kFp16, true).with_score_function(true);
  };
  for (const ampere::BackwardInstance& row : ampere::kBackwardTable) {
    compiles(of_function(row.config), {8, 9});
    if (is_quick()) break;
  }
  for (const ampere::BackwardInstance& row : ampere::kMaskBackwardTable) {
    compiles(of_function(row.config), {8, 0});
    if (is_quick()) break;
  }
}

TEST_F(ScoreProgram, IsCompiledOnce) {
  FA3_SKIP_WITHOUT_NVRTC();
  files::remove_all(folder);
  const auto score = function_of("return score * 2.0f;");
  std::string first, second, third;
  ASSERT_TRUE(cuda::find_code(hopper::score_program(score, kSmall), nullptr, &first).ok());
  EXPECT_EQ(count(), 1);
  const auto time = files::last_write_time(only_file());
  ASSERT_TRUE(cuda::find_code(hopper::score_program(score, kSmall), nullptr, &second).ok());
  EXPECT_EQ(files::last_write_time(only_file()), time);
  EXPECT_EQ(first, second);
  files::resize_file(only_file(), 100);
  ASSERT_TRUE(cuda::find_code(hopper::score_program(score, kSmall), nullptr, &third).ok());
  EXPECT_GT(files::file_size(only_file()), 1000u);
  const auto other = function_of("return score * 3.0f;");
  ASSERT_TRUE(cuda::find_code(hopper::score_program(other, kSmall), nullptr, &third).ok());
  EXPECT_EQ(count(), 2);
}

TEST_F(ScoreProgram, SaysWhatTheCompilerSays) {
  FA3_SKIP_WITHOUT_NVRTC();
  std::string code;
  const auto score = function_of("return score +\n  undeclared;");
  const Status status = cuda::find_code(hopper::score_program(score, kSmall), nullptr, &code);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("score function(2): error"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("undeclared"), std::string::npos);
}

}  // namespace
}  // namespace fa3
