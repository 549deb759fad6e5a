// SPDX-License-Identifier: Apache-2.0

/// @file
/// fa3 in C++: named arguments, Status instead of codes. Header-only over the C ABI (`fa3.h`),
/// which documents shapes, units and semantics.
///
///     fa3::ForwardArgs args;
///     args.q = fa3::bshd(q, FA3_FLOAT32, batch, seq, heads, dim);  // k, v, o likewise
///     args.options.causal = 1;
///     fa3::Workspace workspace;  // keep it: it only ever grows
///     fa3::Status status = fa3::forward(args, workspace);
///     if (!status.ok()) std::puts(status.message().c_str());
#pragma once

#include <fa3/fa3.h>
#include <fa3/fp8.h>
#include <fa3/mla.h>
#include <fa3/ring.h>
#include <fa3/status.h>
#include <fa3/tensor.h>

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace fa3 {

namespace detail {
inline Status status_of(fa3_status code) {
  if (code == FA3_OK) return {};
  return {static_cast<StatusCode>(code), fa3_last_error()};
}

// Asks for the size of a text, then for the text.
template <class Args, class Write>
Status text_of(const Write& write, const Args& args, std::string* text) {
  size_t bytes = 0;
  const fa3_status sized = write(&args, nullptr, 0, &bytes);
  if (sized != FA3_OK) return status_of(sized);
  std::string written(bytes, '\0');
  const fa3_status done = write(&args, &written[0], bytes, nullptr);
  if (done != FA3_OK) return status_of(done);
  written.resize(bytes - 1);  // without the NUL
  *text = std::move(written);
  return {};
}
}  // namespace detail

/// fa3_forward_params with every field at its default.
struct ForwardArgs : fa3_forward_params {
  ForwardArgs() { fa3_forward_params_init(this); }
};
/// fa3_backward_params with every field at its default.
struct BackwardArgs : fa3_backward_params {
  BackwardArgs() { fa3_backward_params_init(this); }
};
/// fa3_merge_params with every field at its default.
struct MergeArgs : fa3_merge_params {
  MergeArgs() { fa3_merge_params_init(this); }
};
/// fa3_append_params with every field at its default.
struct AppendArgs : fa3_append_params {
  AppendArgs() { fa3_append_params_init(this); }
};
/// fa3_quantize_params with every field at its default.
struct QuantizeArgs : fa3_quantize_params {
  QuantizeArgs() { fa3_quantize_params_init(this); }
};

/// fa3_mla_forward_params with every field at its default.
struct MlaForwardArgs : fa3_mla_forward_params {
  MlaForwardArgs() { fa3_mla_forward_params_init(this); }
};
/// fa3_mla_backward_params with every field at its default.
struct MlaBackwardArgs : fa3_mla_backward_params {
  MlaBackwardArgs() { fa3_mla_backward_params_init(this); }
};
/// fa3_mla_append_params with every field at its default.
struct MlaAppendArgs : fa3_mla_append_params {
  MlaAppendArgs() { fa3_mla_append_params_init(this); }
};
/// fa3_mla_gather_params with every field at its default.
struct MlaGatherArgs : fa3_mla_gather_params {
  MlaGatherArgs() { fa3_mla_gather_params_init(this); }
};

/// The plan in words, and the reason for each choice: see fa3_forward_plan_text().
inline Status plan_text(const ForwardArgs& args, std::string* text) {
  return detail::text_of(fa3_forward_plan_text, args, text);
}
/// The plan in words, and the reason for each choice: see fa3_backward_plan_text().
inline Status plan_text(const BackwardArgs& args, std::string* text) {
  return detail::text_of(fa3_backward_plan_text, args, text);
}

/// The plan in words, and the reason for each choice: see fa3_mla_forward_plan_text().
inline Status plan_text(const MlaForwardArgs& args, std::string* text) {
  return detail::text_of(fa3_mla_forward_plan_text, args, text);
}

/// The plan in words, and the reason for each choice: see fa3_mla_backward_plan_text().
inline Status plan_text(const MlaBackwardArgs& args, std::string* text) {
  return detail::text_of(fa3_mla_backward_plan_text, args, text);
}

/// Can this call run here? See fa3_forward_supported().
inline Status supported(const ForwardArgs& args) {
  return detail::status_of(fa3_forward_supported(&args));
}
/// Can this call run here? See fa3_backward_supported().
inline Status supported(const BackwardArgs& args) {
  return detail::status_of(fa3_backward_supported(&args));
}
/// Can this call run here? See fa3_quantize_supported().
inline Status supported(const QuantizeArgs& args) {
  return detail::status_of(fa3_quantize_supported(&args));
}

/// Can this call run here? See fa3_mla_forward_supported().
inline Status supported(const MlaForwardArgs& args) {
  return detail::status_of(fa3_mla_forward_supported(&args));
}

/// Can this call run here? See fa3_mla_backward_supported().
inline Status supported(const MlaBackwardArgs& args) {
  return detail::status_of(fa3_mla_backward_supported(&args));
}

/// Whether FP8 pays for this call: see fa3_forward_advise().
inline Status advise(const ForwardArgs& args, fa3_advice* advice) {
  return detail::status_of(fa3_forward_advise(&args, advice));
}

/// Checks lengths and places, also those on a device: see fa3_forward_validate().
inline Status validate(const ForwardArgs& args, void* stream = nullptr) {
  return detail::status_of(fa3_forward_validate(&args, stream));
}

/// Bytes of workspace that the call needs: see fa3_forward_workspace_size().
inline Status workspace_size(const ForwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_forward_workspace_size(&args, bytes));
}
/// Bytes of workspace that the call needs: see fa3_backward_workspace_size().
inline Status workspace_size(const BackwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_backward_workspace_size(&args, bytes));
}
/// Bytes of workspace that the call needs: see fa3_quantize_workspace_size().
inline Status workspace_size(const QuantizeArgs& args, size_t* bytes) {
  return detail::status_of(fa3_quantize_workspace_size(&args, bytes));
}

/// Bytes of workspace that the call needs: see fa3_mla_forward_workspace_size().
inline Status workspace_size(const MlaForwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_mla_forward_workspace_size(&args, bytes));
}

/// Bytes of workspace that the call needs: see fa3_mla_backward_workspace_size().
inline Status workspace_size(const MlaBackwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_mla_backward_workspace_size(&args, bytes));
}

/// Bytes that the lists of the call's block mask take: see fa3_forward_block_lists_size().
inline Status block_lists_size(const ForwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_forward_block_lists_size(&args, bytes));
}
/// Bytes that the lists of the call's block mask take: see fa3_backward_block_lists_size().
inline Status block_lists_size(const BackwardArgs& args, size_t* bytes) {
  return detail::status_of(fa3_backward_block_lists_size(&args, bytes));
}
/// Makes the lists of a block mask for many calls: see fa3_forward_make_block_lists().
inline Status make_block_lists(const ForwardArgs& args, void* memory, size_t bytes, void* stream,
                               fa3_block_lists* lists) {
  return detail::status_of(fa3_forward_make_block_lists(&args, memory, bytes, stream, lists));
}
/// Makes the lists of a block mask for many calls: see fa3_backward_make_block_lists().
inline Status make_block_lists(const BackwardArgs& args, void* memory, size_t bytes, void* stream,
                               fa3_block_lists* lists) {
  return detail::status_of(fa3_backward_make_block_lists(&args, memory, bytes, stream, lists));
}

/// fa3_forward() with a workspace that the caller owns: the only form for CUDA tensors.
inline Status forward(const ForwardArgs& args, void* workspace, size_t bytes,
                      void* stream = nullptr) {
  return detail::status_of(fa3_forward(&args, workspace, bytes, stream));
}
/// fa3_backward() with a workspace that the caller owns: the only form for CUDA tensors.
inline Status backward(const BackwardArgs& args, void* workspace, size_t bytes,
                       void* stream = nullptr) {
  return detail::status_of(fa3_backward(&args, workspace, bytes, stream));
}
/// fa3_quantize() with a workspace that the caller owns: the only form for CUDA tensors.
inline Status quantize(const QuantizeArgs& args, void* workspace, size_t bytes,
                       void* stream = nullptr) {
  return detail::status_of(fa3_quantize(&args, workspace, bytes, stream));
}
/// fa3_mla_forward() with a workspace that the caller owns.
inline Status forward(const MlaForwardArgs& args, void* workspace, size_t bytes,
                      void* stream = nullptr) {
  return detail::status_of(fa3_mla_forward(&args, workspace, bytes, stream));
}
/// fa3_mla_backward() with a workspace that the caller owns.
inline Status backward(const MlaBackwardArgs& args, void* workspace, size_t bytes,
                       void* stream = nullptr) {
  return detail::status_of(fa3_mla_backward(&args, workspace, bytes, stream));
}
/// fa3_mla_append(). It needs no workspace.
inline Status append(const MlaAppendArgs& args, void* stream = nullptr) {
  return detail::status_of(fa3_mla_append(&args, stream));
}
/// fa3_mla_gather(). It needs no workspace.
inline Status gather(const MlaGatherArgs& args, void* stream = nullptr) {
  return detail::status_of(fa3_mla_gather(&args, stream));
}
/// fa3_merge(). It needs no workspace.
inline Status merge(const MergeArgs& args, void* stream = nullptr) {
  return detail::status_of(fa3_merge(&args, stream));
}

/// fa3_append(). It needs no workspace.
inline Status append(const AppendArgs& args, void* stream = nullptr) {
  return detail::status_of(fa3_append(&args, stream));
}

/// Host memory that grows to what the calls ask for; reuse one per thread to allocate only once.
class Workspace {
 public:
  /// Makes room for at least `bytes` bytes; what the memory held is lost where it grows.
  Status reserve(size_t bytes) {
    if (bytes <= capacity_) return {};
    auto* grown =
        static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
    if (grown == nullptr) {
      return {StatusCode::out_of_memory,
              "workspace: the system has no " + std::to_string(bytes) + " bytes left"};
    }
    memory_.reset(grown);
    capacity_ = bytes;
    return {};
  }

  /// The fa3_workspace_allocator of a Workspace, which is its context.
  static void* allocate(void* workspace, size_t bytes) {
    auto* self = static_cast<Workspace*>(workspace);
    return self->reserve(bytes).ok() ? self->data() : nullptr;
  }

  /// Aligned to 256 bytes; null before the first reserve().
  void* data() const { return memory_.get(); }
  /// How many bytes there are.
  size_t bytes() const { return capacity_; }

 private:
  static constexpr size_t kAlignment = 256;
  struct Release {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte, Release> memory_;
  size_t capacity_ = 0;
};

/// fa3_forward() for CPU tensors.
inline Status forward(const ForwardArgs& args, Workspace& workspace) {
  return detail::status_of(
      fa3_forward_with_allocator(&args, Workspace::allocate, &workspace, nullptr));
}
/// fa3_backward() for CPU tensors.
inline Status backward(const BackwardArgs& args, Workspace& workspace) {
  return detail::status_of(
      fa3_backward_with_allocator(&args, Workspace::allocate, &workspace, nullptr));
}
/// fa3_quantize() for CPU tensors.
inline Status quantize(const QuantizeArgs& args, Workspace& workspace) {
  return detail::status_of(
      fa3_quantize_with_allocator(&args, Workspace::allocate, &workspace, nullptr));
}

/// fa3_mla_forward() for CPU tensors.
inline Status forward(const MlaForwardArgs& args, Workspace& workspace) {
  return detail::status_of(
      fa3_mla_forward_with_allocator(&args, Workspace::allocate, &workspace, nullptr));
}
/// fa3_mla_backward() for CPU tensors.
inline Status backward(const MlaBackwardArgs& args, Workspace& workspace) {
  return detail::status_of(
      fa3_mla_backward_with_allocator(&args, Workspace::allocate, &workspace, nullptr));
}

/// fa3_ring with every field at its default: attention over a sequence that the ranks of an NCCL
/// communicator share (`ring.h`).
struct Ring : fa3_ring {
  Ring() { fa3_ring_init(this); }
};

/// Bytes of workspace that this rank needs: see fa3_ring_forward_workspace_size().
inline Status workspace_size(const ForwardArgs& args, const Ring& ring, size_t* bytes) {
  return detail::status_of(fa3_ring_forward_workspace_size(&args, &ring, bytes));
}
/// Bytes of workspace that this rank needs: see fa3_ring_backward_workspace_size().
inline Status workspace_size(const BackwardArgs& args, const Ring& ring, size_t* bytes) {
  return detail::status_of(fa3_ring_backward_workspace_size(&args, &ring, bytes));
}
/// Compares what all ranks pass: see fa3_ring_forward_agree().
inline Status agree(const ForwardArgs& args, const Ring& ring, void* workspace, size_t bytes,
                    void* stream = nullptr) {
  return detail::status_of(fa3_ring_forward_agree(&args, &ring, workspace, bytes, stream));
}
/// Compares what all ranks pass: see fa3_ring_backward_agree().
inline Status agree(const BackwardArgs& args, const Ring& ring, void* workspace, size_t bytes,
                    void* stream = nullptr) {
  return detail::status_of(fa3_ring_backward_agree(&args, &ring, workspace, bytes, stream));
}
/// fa3_ring_forward(): the keys of all ranks.
inline Status forward(const ForwardArgs& args, const Ring& ring, void* workspace, size_t bytes,
                      void* stream = nullptr) {
  return detail::status_of(fa3_ring_forward(&args, &ring, workspace, bytes, stream));
}
/// fa3_ring_backward(): the keys of all ranks.
inline Status backward(const BackwardArgs& args, const Ring& ring, void* workspace, size_t bytes,
                       void* stream = nullptr) {
  return detail::status_of(fa3_ring_backward(&args, &ring, workspace, bytes, stream));
}
/// Which rows of the whole a rank has: see fa3_ring_pieces().
inline Status pieces_of_rank(const Ring& ring, int world, int rank,
                             std::vector<fa3_ring_piece>* pieces) {
  int64_t count = 0;  // asked for first, so that nothing is allocated for a ring that is refused
  pieces->clear();
  Status status = detail::status_of(fa3_ring_pieces(&ring, world, rank, nullptr, &count));
  if (!status.ok()) return status;
  pieces->resize(size_t(count));
  return detail::status_of(fa3_ring_pieces(&ring, world, rank, pieces->data(), &count));
}

}  // namespace fa3
