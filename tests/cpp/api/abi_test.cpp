// SPDX-License-Identifier: Apache-2.0
//
// The promises of fa3.h that hold for every function: struct sizes, null pointers, last errors,
// queries without data, plan text, workspaces, names.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "api/calls.h"

namespace fa3::test {
namespace {

TEST(Params, of_another_size_are_refused_by_every_function) {
  for (size_t size : {size_t{0}, sizeof(fa3_forward_params) - 8, sizeof(fa3_forward_params) + 8}) {
    ForwardCall call;
    call.params.struct_size = size;
    size_t bytes = 77;
    char text[8] = "before";
    EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_says("params:", {"struct_size", "got " + std::to_string(size)}));
    EXPECT_EQ(fa3_forward_supported(&call.params), FA3_INVALID_ARGUMENT);
    EXPECT_EQ(fa3_forward_workspace_size(&call.params, &bytes), FA3_INVALID_ARGUMENT);
    EXPECT_EQ(fa3_forward_plan_text(&call.params, text, 8, &bytes), FA3_INVALID_ARGUMENT);
    EXPECT_EQ(bytes, 77u);
    EXPECT_STREQ(text, "before");
    EXPECT_TRUE(call.outputs_untouched());
    BackwardCall backward;
    backward.params.struct_size = size;
    EXPECT_EQ(backward.run(), FA3_INVALID_ARGUMENT);
    EXPECT_EQ(fa3_backward_supported(&backward.params), FA3_INVALID_ARGUMENT);
    EXPECT_TRUE(backward.outputs_untouched());
  }
}

TEST(Params, may_be_null_without_a_crash) {
  size_t bytes = 0;
  char text[8];
  fa3_forward_params_init(nullptr);
  fa3_backward_params_init(nullptr);
  fa3_merge_params_init(nullptr);
  EXPECT_EQ(fa3_forward_supported(nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_backward_supported(nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_forward_workspace_size(nullptr, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_backward_workspace_size(nullptr, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_forward_plan_text(nullptr, text, 8, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_backward_plan_text(nullptr, text, 8, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_forward(nullptr, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_backward(nullptr, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_merge(nullptr, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("params:", {"null"}));
  EXPECT_EQ(fa3_dropout_mask(0.1f, 0, 0, 1, 1, 1, 1, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("keep:", {"null"}));
  EXPECT_EQ(fa3_dropout_mask(0.1f, 0, 0, -1, 1, 1, 1, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_dropout_mask(0.1f, 0, 0, 1, 0, 1, 1, nullptr), FA3_OK);
  constexpr int64_t kMany = 1 << 20;  // no element, in no time
  EXPECT_EQ(fa3_dropout_mask(0.5f, 1, 1, kMany, kMany, kMany, 0, nullptr), FA3_OK);
  const int64_t one[] = {1, 1, 1, 1}, below[] = {0, 0, -1, 0};
  EXPECT_EQ(fa3_dropout_mask_part(0.1f, 0, 0, nullptr, one, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("first, extents:", {"null"}));
  EXPECT_EQ(fa3_dropout_mask_part(0.1f, 0, 0, below, one, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("first:", {"0, 0, -1, 0"}));
  EXPECT_EQ(fa3_engine(0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("info:", {"null"}));
  ForwardCall call;
  EXPECT_EQ(fa3_forward_workspace_size(&call.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("bytes:", {"null"}));
  EXPECT_EQ(fa3_forward_plan_text(&call.params, nullptr, 10, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("text:", {"null"}));
}

TEST(Params, start_with_documented_defaults) {
  fa3_backward_params params;
  std::memset(&params, 0xff, sizeof(params));
  fa3_backward_params_init(&params);
  EXPECT_EQ(params.struct_size, sizeof(params));
  EXPECT_EQ(params.options.scale, FA3_SCALE_AUTO);
  EXPECT_EQ(params.options.window_left, FA3_WINDOW_UNBOUNDED);
  EXPECT_EQ(params.options.window_right, FA3_WINDOW_UNBOUNDED);
  EXPECT_EQ(params.options.softcap, 0);
  EXPECT_EQ(params.options.causal, 0);
  EXPECT_EQ(params.options.engine, FA3_ENGINE_AUTO);
  EXPECT_EQ(params.options.num_threads, 0);
  EXPECT_EQ(params.dsink.rank, 0);
  EXPECT_EQ(params.dsink.data, nullptr);
}

TEST(LastError, is_cleared_by_success) {
  ForwardCall call;
  EXPECT_STREQ((fa3_forward_supported(nullptr), fa3_last_error()),
               "params: expected a struct, got a null pointer");
  EXPECT_EQ(call.run(), FA3_OK);
  EXPECT_STREQ(fa3_last_error(), "");
}

TEST(LastError, belongs_to_the_calling_thread) {
  ForwardCall call;
  call.params.options.scale = 0;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_STREQ(fa3_last_error(), "");
    EXPECT_EQ(fa3_engine(-1, nullptr), FA3_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(fa3_last_error(), "info"), nullptr);
  }).join();
  EXPECT_TRUE(last_error_says("scale:", {}));
}

TEST(Query, needs_no_data_pointers) {
  ForwardCall call(true);
  fa3_forward_params& p = call.params;
  fa3_options& options = p.options;
  size_t bytes = 0, needed = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&p, &needed), FA3_OK);
  for (fa3_tensor* tensor :
       {&p.q, &p.k, &p.v, &p.o, &p.lse, &p.sink, &options.cu_seqlens_q, &options.cu_seqlens_k}) {
    tensor->data = nullptr;
  }
  EXPECT_EQ(fa3_forward_supported(&p), FA3_OK) << fa3_last_error();
  EXPECT_EQ(fa3_forward_workspace_size(&p, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_GE(bytes, needed);
  EXPECT_EQ(fa3_forward_plan_text(&p, nullptr, 0, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_GT(bytes, 1u);
  fa3_answer answer;
  EXPECT_EQ(fa3_forward_query(&p, &answer), FA3_OK) << fa3_last_error();
  EXPECT_EQ(answer.supported, 1) << answer.reason;
}

TEST(PlanText, is_cut_to_the_capacity_and_always_ended) {
  BackwardCall call;
  size_t needed = 0;
  ASSERT_EQ(fa3_backward_plan_text(&call.params, nullptr, 0, &needed), FA3_OK);
  std::string whole(needed, '?');
  ASSERT_EQ(fa3_backward_plan_text(&call.params, whole.data(), needed, nullptr), FA3_OK);
  ASSERT_EQ(std::strlen(whole.data()), needed - 1);
  for (const char* word : {"engine ", "kernel ", "workspace ", "why "}) {
    EXPECT_NE(whole.find(word), std::string::npos) << whole;
  }
  for (size_t capacity : {size_t{1}, size_t{2}, needed / 2, needed - 1, needed + 10}) {
    std::string text(needed + 20, '?');
    ASSERT_EQ(fa3_backward_plan_text(&call.params, text.data(), capacity, nullptr), FA3_OK);
    const size_t length = std::min(capacity, needed) - 1;
    EXPECT_EQ(std::strlen(text.c_str()), length);
    EXPECT_EQ(whole.compare(0, length, text, 0, length), 0);
    EXPECT_EQ(text.find_first_not_of('?', length + 1), std::string::npos) << "wrote past the end";
  }
}

TEST(WorkspaceRules, too_small_and_null_are_refused) {
  BackwardCall call;
  size_t bytes = 0;
  call.params.options.engine = FA3_ENGINE_STANDARD;  // always needs some
  ASSERT_EQ(fa3_backward_workspace_size(&call.params, &bytes), FA3_OK);
  ASSERT_GT(bytes, 0u);
  auto* memory = static_cast<std::byte*>(call.forward.workspace.data());
  EXPECT_EQ(fa3_backward(&call.params, memory, bytes - 1, nullptr), FA3_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(last_error_says("workspace:", {std::to_string(bytes), std::to_string(bytes - 1)}));
  EXPECT_EQ(fa3_backward(&call.params, nullptr, 0, nullptr), FA3_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(fa3_backward(&call.params, nullptr, bytes, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("workspace:", {"null pointer"}));
  EXPECT_TRUE(call.outputs_untouched());
  EXPECT_EQ(fa3_backward(&call.params, memory, bytes, nullptr), FA3_OK) << fa3_last_error();
}

TEST(WorkspaceRules, memory_of_a_tensor_is_refused) {
  BackwardCall call;
  size_t bytes = 0;
  ASSERT_EQ(fa3_backward_workspace_size(&call.params, &bytes), FA3_OK);
  auto* memory = static_cast<std::byte*>(call.forward.workspace.data()) + 3;  // a tensor's address
  fa3_backward_params& p = call.params;
  struct Named {
    const char* name;
    fa3_tensor* tensor;
  };
  for (const Named& each :
       {Named{"q", &p.q}, Named{"k", &p.k}, Named{"v", &p.v}, Named{"o", &p.o},
        Named{"lse", &p.lse}, Named{"sink", &p.sink}, Named{"d_o", &p.d_o}, Named{"dq", &p.dq},
        Named{"dk", &p.dk}, Named{"dv", &p.dv}, Named{"dsink", &p.dsink}}) {
    void* own = each.tensor->data;
    each.tensor->data = memory + bytes - 4;
    EXPECT_EQ(fa3_backward(&p, memory, bytes, nullptr), FA3_INVALID_ARGUMENT) << each.name;
    EXPECT_TRUE(last_error_says("workspace:", {"overlaps " + std::string(each.name)}));
    each.tensor->data = own;
  }
  EXPECT_TRUE(call.outputs_untouched());
  ForwardCall forward(true);
  ASSERT_EQ(fa3_forward_workspace_size(&forward.params, &bytes), FA3_OK);
  forward.params.o.data = static_cast<std::byte*>(forward.workspace.data()) + 3;
  EXPECT_EQ(forward.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("workspace:", {"overlaps o"}));
}

TEST(OptionalTensors, are_absent_by_rank_and_need_data_otherwise) {
  ForwardCall call;
  call.params.lse.data = nullptr;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("lse:", {"null pointer", "rank 0"}));
  call.params.lse.rank = 0;
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  ForwardCall packed(true);
  packed.params.options.cu_seqlens_q.data = nullptr;
  EXPECT_EQ(packed.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("cu_seqlens_q:", {"null pointer", "rank 0"}));
  ForwardCall paged;
  paged.params.page_table.rank = 2;
  EXPECT_EQ(paged.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("page_table:", {}));
}

TEST(WorkspaceRules, reference_forward_without_lse_still_writes_all_of_o) {
  ForwardCall call;
  call.params.lse = {};
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  EXPECT_EQ(call.o.find_unwritten(), "");
  EXPECT_TRUE(call.lse.untouched());
}

TEST(Names, version_is_the_headers) {
  EXPECT_EQ(fa3_version(), FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH);
}

TEST(Names, every_status_has_its_own) {
  std::set<std::string> names;
  for (int status = FA3_OK; status <= FA3_INTERNAL_ERROR; ++status) {
    names.insert(fa3_status_name(static_cast<fa3_status>(status)));
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_EQ(names.count("unknown status"), 0u);
  EXPECT_STREQ(fa3_status_name(FA3_INVALID_ARGUMENT), "invalid argument");
}

TEST(Engines, are_listed_once_with_a_reason_and_end_with_an_error) {
  std::set<std::string> names;
  fa3_engine_info info;
  int32_t count = 0;
  while (fa3_engine(count, &info) == FA3_OK) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " twice";
    EXPECT_STRNE(info.detail, "");
    ++count;
  }
  EXPECT_TRUE(last_error_says("index:", {"got " + std::to_string(count)}));
  EXPECT_EQ(names.count("reference") + names.count("standard"), 2u);
  EXPECT_EQ(fa3_engine(-1, &info), FA3_INVALID_ARGUMENT);
}

TEST(Engines, keep_what_they_said) {
  std::vector<fa3_engine_info> infos;
  std::vector<std::string> said;  // at once
  const auto ask = [&] {
    fa3_engine_info info;
    for (int32_t i = 0; fa3_engine(i, &info) == FA3_OK; ++i) {
      infos.push_back(info);
      said.push_back(info.detail);
    }
  };
  ask();
  std::thread(ask).join();  // a thread that has ended
  const size_t count = infos.size() / 2;
  for (size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(infos[i].detail, said[i]) << "another sentence replaced an engine's";
    EXPECT_EQ(said[i], said[i % count]);
  }
}

// The C++ face: statuses carry the sentence, the workspace grows and is reused.
TEST(CppFace, reports_errors_and_reuses_its_workspace) {
  ForwardCall call;
  ForwardArgs args;
  static_cast<fa3_forward_params&>(args) = call.params;
  Workspace workspace;
  const Status done = forward(args, workspace);
  EXPECT_TRUE(done.ok()) << done.message();
  const void* first = workspace.data();
  EXPECT_TRUE(forward(args, workspace).ok());
  EXPECT_EQ(workspace.data(), first);
  args.options.scale = -1;
  const Status bad = forward(args, workspace);
  EXPECT_EQ(bad.code(), StatusCode::invalid_argument);
  EXPECT_EQ(bad.message().rfind("scale:", 0), 0u) << bad.message();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators abort
TEST(CppFace, appends_to_a_cache) {
  std::vector<float> k(2 * 4 * 3), v(2 * 4 * 3), k_new(2 * 3, 1.0f), v_new(2 * 3, 2.0f);
  std::vector<int32_t> used = {3, 0};
  AppendArgs args;
  args.k_cache = bshd(k.data(), FA3_FLOAT32, 2, 4, 1, 3);
  args.v_cache = bshd(v.data(), FA3_FLOAT32, 2, 4, 1, 3);
  args.k = bshd(k_new.data(), FA3_FLOAT32, 2, 1, 1, 3);
  args.v = bshd(v_new.data(), FA3_FLOAT32, 2, 1, 1, 3);
  args.seqused = contiguous(used.data(), FA3_INT32, {2});
  const Status status = append(args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(k, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1,  //
                                   1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(v[9], 2.0f);
  used[0] = 4;
  EXPECT_EQ(append(args).message().rfind("seqused: expected a length in [0, 3]", 0), 0u);
}

TEST(CppFace, says_its_plan) {
  const ForwardCall call;
  ForwardArgs args;
  static_cast<fa3_forward_params&>(args) = call.params;
  std::string text = "before";
  ASSERT_TRUE(plan_text(args, &text).ok());
  EXPECT_EQ(text.rfind("engine cpu\n", 0), 0u) << text;
  EXPECT_NE(text.back(), '\0');
  EXPECT_EQ(text, std::string(text.c_str()));
  args.options.scale = 0;
  EXPECT_FALSE(plan_text(args, &text).ok());
  EXPECT_EQ(text.rfind("engine cpu\n", 0), 0u) << "written although the call failed";
}

TEST(CppFace, keeps_views_of_any_extents_within_their_struct) {
  constexpr int64_t kFar = int64_t{1} << 40;
  float number = 0;
  for (const fa3_tensor& view : {contiguous(&number, FA3_FLOAT32, {1, 1, 1, 1, 1, 1, 1}),
                                 contiguous(&number, FA3_FLOAT32, {2, kFar, kFar, 8})}) {
    const ForwardCall call;
    ForwardArgs args;
    static_cast<fa3_forward_params&>(args) = call.params;
    args.q = view;
    EXPECT_EQ(supported(args).message().rfind("q: expected", 0), 0u) << supported(args).message();
    EXPECT_EQ(view.device_index, 0);
  }
}

TEST(CppFace, reports_that_memory_is_out) {
  Workspace workspace;
  const Status out_of_memory = workspace.reserve(size_t{1} << 62);
  EXPECT_EQ(out_of_memory.code(), StatusCode::out_of_memory);
}
#endif

}  // namespace
}  // namespace fa3::test
