// SPDX-License-Identifier: Apache-2.0
//
// Programs that were compiled before a params struct grew work with the library of today: on small
// structs that have grown in both places, and on a call whose caller knows fewer fields.
#include "api/layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "api/boundary.h"
#include "api/calls.h"

namespace fa3::api {
namespace {

struct OldOptions {
  double scale;
  int64_t window;
};
struct OldParams {
  size_t struct_size;
  OldOptions options;
  int64_t q, k;
};
struct NewOptions {
  double scale;
  int64_t window, sparsity;
};
struct NewParams {
  size_t struct_size;
  NewOptions options;
  int64_t q, k, descale;
};

constexpr Layout kGrown[] = {{sizeof(OldParams), sizeof(OldOptions)},
                             {sizeof(NewParams) - 8, sizeof(NewOptions)},  // before descale
                             {sizeof(NewParams), sizeof(NewOptions)}};
constexpr NewParams kDefaults = {sizeof(NewParams), {-1.0, -1, 99}, 0, 0, 77};

TEST(GrownStruct, takes_an_older_one_and_keeps_its_defaults_for_the_rest) {
  const OldParams old = {sizeof(OldParams), {0.5, 6}, 11, 12};
  NewParams full = kDefaults;
  ASSERT_TRUE(widen("params", &old, kGrown, &full).ok());
  EXPECT_EQ(full.struct_size, sizeof(NewParams));
  EXPECT_EQ(full.options.scale, 0.5);
  EXPECT_EQ(full.options.window, 6);
  EXPECT_EQ(full.options.sparsity, 99);
  EXPECT_EQ(full.q, 11);
  EXPECT_EQ(full.k, 12);
  EXPECT_EQ(full.descale, 77);

  const NewParams between = {sizeof(NewParams) - 8, {0.5, 6, 5}, 11, 12, -1};
  ASSERT_TRUE(widen("params", &between, kGrown, &full).ok());
  EXPECT_EQ(full.options.sparsity, 5);
  EXPECT_EQ(full.k, 12);
  EXPECT_EQ(full.descale, 77) << "memory behind the caller's struct was read";
}

TEST(GrownStruct, is_initialised_within_the_callers_size) {
  struct {
    OldParams params;
    int64_t behind = 1234;
  } old;
  narrow(&kDefaults, kGrown, &old.params, sizeof(OldParams));
  EXPECT_EQ(old.params.struct_size, sizeof(OldParams));
  EXPECT_EQ(old.params.options.window, -1);
  EXPECT_EQ(old.params.q, 0);
  EXPECT_EQ(old.behind, 1234);
}

TEST(GrownStruct, of_a_newer_header_is_refused_with_the_way_out) {
  struct {
    NewParams params;
    int64_t unknown = 1;
  } newer;
  narrow(&kDefaults, kGrown, &newer, sizeof(newer));
  EXPECT_EQ(newer.params.struct_size, sizeof(newer));
  EXPECT_EQ(newer.unknown, 0);
  NewParams full = kDefaults;
  const Status status = widen("params", &newer, kGrown, &full);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("newer fa3.h"), std::string::npos) << status.message();
}

TEST(GrownStruct, of_no_released_size_is_refused_with_those_that_are) {
  OldParams odd = {sizeof(OldParams) + 4, {0.5, 6}, 11, 12};
  NewParams full = kDefaults;
  const Status status = widen("params", &odd, kGrown, &full);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("40 or 48 or 56, got 44"), std::string::npos) << status.message();
}

TEST(OlderCaller, computes_what_a_current_one_does) {
  // Before dropout came, and after the first seven fields behind the options.
  constexpr Layout kNewest = kLayouts<fa3_forward_params>.back();
  constexpr size_t kOlderOptions = offsetof(fa3_options, dropout_p);
  constexpr size_t kFieldsBehind =
      offsetof(fa3_forward_params, page_table) - offsetof(fa3_forward_params, q);
  constexpr Layout kCalls[] = {{sizeof(size_t) + kOlderOptions + kFieldsBehind, kOlderOptions},
                               kNewest};
  test::ForwardCall call;
  call.params.options.softcap = 3;
  call.params.options.window_left = 2;
  ASSERT_EQ(call.run(), FA3_OK) << fa3_last_error();
  const std::vector<std::byte> o = call.o.memory(), lse = call.lse.memory();

  std::vector<std::byte> older(kCalls[0].size);  // ends where the caller's struct does
  narrow(&call.params, kCalls, older.data(), older.size());
  call.params = defaults<fa3_forward_params>();
  ASSERT_TRUE(widen("params", older.data(), kCalls, &call.params).ok());
  call.o.poison();
  call.lse.poison();
  ASSERT_EQ(call.run(), FA3_OK) << fa3_last_error();
  EXPECT_EQ(call.o.memory(), o);
  EXPECT_EQ(call.lse.memory(), lse);
}

}  // namespace
}  // namespace fa3::api
