// SPDX-License-Identifier: Apache-2.0
//
// The decode kernels as they stand, on a machine that schedules all their lanes at random
// (machine/machine.h): stages that a warp's lanes fill and free, rows that CTAs of a cluster send to
// each other, splits that the last CTA combines. Broken protocols must be found out.
#include <cstdlib>
#include <set>

#include "engine/hopper/instances/decode_table.h"
#include "decode_run.h"

namespace fa3::hopper {
namespace {

constexpr double kSlow = 0.01;
constexpr int kWarpsOfCta = 8;

const Pace kPaces[] = {
    {},
    {.name = "slow copies", .engines = 0.02},
    {.name = "one slow warp", .weight = [](int warp) { return warp == 5 ? kSlow : 1; }},
    {.name = "a slow CTA", .weight = [](int warp) { return warp < kWarpsOfCta ? kSlow : 1; }},
    {.name = "another slow CTA",
     .engines = 10,
     .weight = [](int warp) { return warp / kWarpsOfCta == 1 ? kSlow : 1; },
     .interruption = 0.5},
};

unsigned num_seeds() {
  return std::getenv("FA3_TEST_FULL") ? 20 : 1;
}

// Every way through the kernel for one sequence: a cluster, parts of a tile that the last warp
// combines, both; several heads and packs. More keys than stages hold, and fewer than there are
// warps; pages of one box, of several, and of none that TMA copies.
const DecodeCase kSingle[] = {
    {"a cluster", 1, 4, 1, {3000}, {.ctas = 1, .cluster_log2 = 2}},
    {"parts", 2, 2, 1, {1900}, {.ctas = 4}},
    {"parts in clusters", 1, 8, 1, {2777}, {.ctas = 2, .cluster_log2 = 1}},
    {"heads in clusters", 1, 2, 2, {1333}, {.ctas = 2, .cluster_log2 = 1}},
    {"few keys", 3, 2, 1, {77}, {.ctas = 2, .cluster_log2 = 1}},
    {"large pages", 1, 2, 1, {2100}, {.ctas = 2, .cluster_log2 = 1}, 256},
    {"small pages", 1, 2, 1, {1500}, {.ctas = 1, .cluster_log2 = 1}, 16},
    {"odd pages", 1, 2, 1, {2050}, {.ctas = 2, .cluster_log2 = 1}, 24},
};

// Ranges of key blocks of several sequences, some of them empty: tiles that begin in one range and
// end in another, more sequences than lanes, clusters for each range or none.
std::vector<int32_t> many_sequences() {
  std::vector<int32_t> keys(40);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = int32_t(i * 37 % 300);
  return keys;
}
const DecodeCase kSeveral[] = {
    {"ranges", 1, 2, 1, {900, 0, 300, 1711}, {.ctas = 4}},
    {"ranges in clusters", 2, 2, 1, {1200, 5, 1711}, {.ctas = 2, .cluster_log2 = 1}},
    {"one cluster", 1, 2, 2, {900, 700}, {.ctas = 1, .cluster_log2 = 1}},
    {"groups of heads", 1, 4, 4, {700, 400}, {.ctas = 4, .groups_log2 = 1}},
    {"many sequences", 1, 1, 1, many_sequences(), {.ctas = 3}},
    {"large pages", 1, 2, 1, {1100, 900}, {.ctas = 2, .cluster_log2 = 1}, 256},
    {"odd pages", 1, 2, 1, {1100, 40, 900}, {.ctas = 2, .cluster_log2 = 1}, 24},
};

template <int Row>
struct RowNumber {
  static constexpr int kRow = Row;
};
template <class Number>
class DecodeProtocol : public testing::Test {};
template <class Sequence>
struct Rows;
template <int... Row>
struct Rows<std::integer_sequence<int, Row...>> {
  using Types = testing::Types<RowNumber<Row>...>;
};
using AllRows = Rows<std::make_integer_sequence<int, int(kDecodeTable.size())>>::Types;
TYPED_TEST_SUITE(DecodeProtocol, AllRows);

template <ForwardConfig C, size_t Count>
void expect_all_work_done(const DecodeCase (&cases)[Count]) {
  std::set<bool> loaders;
  unsigned pace = 0;
  for (const DecodeCase& shape : cases) {
    for (unsigned seed = 0; seed < num_seeds(); ++seed, ++pace) {
      const DecodeRun<C> run({shape, seed, kPaces[pace % std::size(kPaces)]});
      loaders.insert(run.by_cp_async());
      ASSERT_EQ(run.problem(), "") << shape.name << ", " << kPaces[pace % std::size(kPaces)].name
                                   << ", seed " << seed;
    }
  }
  EXPECT_EQ(loaders.size(), decode_shape(C).may_use_tma ? 2u : 1u);
}

TYPED_TEST(DecodeProtocol, of_one_sequence_every_key_counts_once) {
  constexpr ForwardConfig kTile = kDecodeTable[TypeParam::kRow].config;
  expect_all_work_done<kTile.with(Element::kBf16, Variant::kDecodeSingle)>(kSingle);
}

TYPED_TEST(DecodeProtocol, of_several_sequences_every_key_counts_once) {
  constexpr ForwardConfig kTile = kDecodeTable[TypeParam::kRow].config;
  if constexpr (kTile.kv_stages > 0) {
    expect_all_work_done<kTile.with(Element::kBf16, Variant::kDecode)>(kSeveral);
  } else {
    GTEST_SKIP() << "there is no such kernel: its stages would not fit";
  }
}

}  // namespace
}  // namespace fa3::hopper
