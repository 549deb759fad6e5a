// SPDX-License-Identifier: Apache-2.0
//
// Programs of every released fa3.h work with today's library. The mechanism first, on structs that
// have grown in both places; then a program compiled with the header of 0.1.
#include "api/layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "api/calls.h"
#include "api/client.h"

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

TEST(OldClient, computes_what_a_current_one_does) {
  ClientResults current, old;
  std::memset(&current, 0, sizeof(current));
  std::memset(&old, 0, sizeof(old));
  const char* failure = run_client(&current);
  ASSERT_EQ(failure, nullptr) << failure << "; " << fa3_last_error();
  failure = run_client_of_0_1(&old);
  ASSERT_EQ(failure, nullptr) << failure << "; " << fa3_last_error();
  EXPECT_EQ(std::memcmp(&current, &old, sizeof(old)), 0);
  EXPECT_NE(old.dsink[0], 0.0f);
  EXPECT_NE(old.merged_o[0], 0.0f);
}

}  // namespace
}  // namespace fa3::api
