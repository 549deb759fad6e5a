// SPDX-License-Identifier: Apache-2.0
//
// All that may be typed: every subcommand, option, default and help text. The parser's headers take
// longer to compile than the rest of a file, so no other includes them. Next: commands.h.
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/bench/bench_compare.h"
#include "cli/bench/machine.h"
#include "cli/call/calls.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "cli/text.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

// The name of a file or folder: any but "", which would read or write nothing.
CLI::Option* add_path(CLI::App& command, const char* name, std::string* path, const char* help) {
  const auto named = [](const std::string& given) -> std::string {
    return given.empty() ? "expected the name of a file, got an empty one" : "";
  };
  return command.add_option(name, *path, help)->check(CLI::Validator(named, "FILE"));
}

// CLI11's own check ends its sentence with a number of 309 digits.
CLI::Validator at_least(int64_t low) {
  const std::string expected = "an integer of at least " + std::to_string(low);
  const auto check = [low, expected](const std::string& given) -> std::string {
    int64_t value = 0;
    const bool is_integer = CLI::detail::lexical_cast(given, value);
    return is_integer && value >= low ? "" : "expected " + expected + ", got " + given;
  };
  return CLI::Validator(check, ">= " + std::to_string(low));
}

void add_engine_flags(CLI::App& command, EngineFlags* flags) {
  command.add_option("--engine", flags->engine, "who computes")
      ->check(CLI::IsMember(engine_names()))
      ->capture_default_str();
  command.add_option("--threads", flags->threads, "CPU threads; 0 = one per available core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_mask_flags(CLI::App& command, MaskFlags* flags) {
  command.add_flag("--causal", flags->causal, "query i sees keys up to i + seqlen_k - seqlen_q");
  command.add_option("--window", flags->window, "L,R: keys to either side; -1 = unbounded")
      ->delimiter(',')
      ->expected(2)
      ->type_name("L,R");
  command.add_option("--softcap", flags->softcap, "cap * tanh(score / cap); 0 = off");
  command.add_option("--scale", flags->scale, "softmax scale; head_dim^-0.5 unless given");
}

constexpr const char* kRunHelp = R"(
Arrays have rank 4: (batch, seq, heads, dim), or (batch, heads, seq, dim) with --layout bhsd.
Outputs have the inputs' layout and dtype; the LSE is (batch, heads, seq) fp32, natural log.
Dtypes: '<f4', '<f2', '<f8' (becomes fp32). npy has no bfloat16: '<V2' is read as bf16 (what
numpy.save writes for ml_dtypes.bfloat16) and written for it; '<u2' with --dtype bf16 are its bits.
--engine hopper copies to the GPU and back; the time is the GPU's own, of this first call.

Examples:
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy --causal --lse LSE.npy
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy --layout bhsd --dtype bf16 --window 255,0
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy --dtype bf16 --engine hopper
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy --backward --do DO.npy \
          --dq DQ.npy --dk DK.npy --dv DV.npy)";

void add_run(CLI::App& app) {
  CLI::App* run = app.add_subcommand("run", "attention over .npy files");
  auto flags = std::make_shared<RunFlags>();
  add_path(*run, "--q", &flags->q, "queries")->required();
  add_path(*run, "--k", &flags->k, "keys")->required();
  add_path(*run, "--v", &flags->v, "values")->required();
  add_path(*run, "--out", &flags->out, "output O, written")->required();
  add_path(*run, "--lse", &flags->lse, "log-sum-exp of the scores, written");
  add_path(*run, "--sink", &flags->sink, "one more logit per query head, (heads)");
  run->add_option("--layout", flags->layout, "axis order of all rank 4 arrays")
      ->check(CLI::IsMember({"bshd", "bhsd"}))
      ->capture_default_str();
  run->add_option("--dtype", flags->dtype,
                  "convert the inputs; without it files keep theirs; e4m3 forward, O is bf16")
      ->check(CLI::IsMember(kForwardDtypeNames));
  add_mask_flags(*run, &flags->mask);
  add_engine_flags(*run, &flags->engine);
  run->add_flag("--backward", flags->backward, "also the gradients of sum(do * o)");
  add_path(*run, "--do", &flags->d_o, "gradient of O, read");
  add_path(*run, "--dq", &flags->dq, "gradient of Q, written");
  add_path(*run, "--dk", &flags->dk, "gradient of K, written");
  add_path(*run, "--dv", &flags->dv, "gradient of V, written");
  add_path(*run, "--dsink", &flags->dsink, "gradient of the sink, written");
  run->footer(kRunHelp);
  run->callback([flags] { run_files(*flags); });
}

constexpr const char* kVerifyHelp = R"(
Errors are relative, in the 2-norm; `row` is the worst row. Each line shows the worst case of its
group: the one that comes nearest to what it may err. Exit code 1 if any case passes its limit.
What the engine says that it cannot do is left out and counted below the table, with the reason.

Examples:
  fa3 verify                           some seconds
  fa3 verify --quick --engine cpu      fewer cases, one engine
  fa3 verify --engine hopper           on the GPU, from copies in its memory
  fa3 verify --full --dtype bf16       long sequences and more head dims)";

void add_verify(CLI::App& app) {
  CLI::App* verify = app.add_subcommand("verify", "an engine against the fp64 reference");
  auto flags = std::make_shared<VerifyFlags>();
  add_engine_flags(*verify, &flags->engine);
  verify->add_option("--dtype", flags->dtypes, "comma list; e4m3 forward")
      ->delimiter(',')
      ->check(CLI::IsMember(kForwardDtypeNames))
      ->capture_default_str();
  CLI::Option* quick = verify->add_flag("--quick", flags->quick, "fewer cases");
  verify->add_flag("--full", flags->full, "more cases, longer sequences")->excludes(quick);
  verify->footer(kVerifyHelp);
  verify->callback([flags] { run_verify(*flags); });
}

constexpr const char* kBenchHelp = R"(
Comma lists sweep: every combination is timed. Times are medians after one warm-up call; the column
`runs` says of how many. FLOPs: 2 (d + dv) b h for each pair of a query and a key, 2.5 times it
backward; causal counts the pairs that are seen, half of them where sq = sk.
peak: independent FMAs (fp32, fp16) or bf16 dot products on the same threads, median of a sample
before every call and one after the last.
On a GPU (--engine hopper) times are its own clock's, after warming up, with the L2 cache flushed
before each call; its peak is not measured, and is null in JSON. Calls follow each other at once, so
long ones run at the clock that the power limit leaves.
--compare OLD NEW measures nothing: it names the cases of two such files whose medians differ by
more than 2% and whose rounds (10th to 90th percentile) lie apart. Exit code 1 if any became slower.

Examples:
  fa3 bench --seqlen 1024,4096 --head-dim 64,128 --causal 0,1
  fa3 bench --engine cpu,standard --dtype fp32,bf16 --pass fwd,bwd --json results.jsonl
  fa3 bench --engine hopper --dtype bf16 --heads 16 --seqlen 1024,16384 --head-dim 128
  fa3 bench --seqlen 1 --seqlen-k 65536 --heads 32 --kv-heads 8 --json - | jq .tflops
  fa3 bench --compare before.jsonl after.jsonl)";

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "time engines over a sweep of shapes");
  auto flags = std::make_shared<BenchFlags>();
  const auto list = [bench](const char* name, auto* values, const char* help) {
    return bench->add_option(name, *values, help)->delimiter(',')->capture_default_str();
  };
  SweepFlags& sweep = flags->sweep;
  list("--engine", &sweep.engine, "who computes")->check(CLI::IsMember(engine_names()));
  list("--pass", &sweep.pass, "forward, backward")->check(CLI::IsMember({"fwd", "bwd"}));
  list("--dtype", &sweep.dtype, "element types; e4m3 forward")
      ->check(CLI::IsMember(kForwardDtypeNames));
  list("--head-dim", &sweep.head_dim, "head dims")->check(CLI::Range(1, 576));
  list("--head-dim-v", &sweep.head_dim_v, "head dims of V; like --head-dim")
      ->check(CLI::Range(1, 576));
  list("--seqlen", &sweep.seqlen, "sequence lengths")->check(at_least(1));
  list("--seqlen-k", &sweep.seqlen_k, "key lengths; like --seqlen")->check(at_least(1));
  list("--batch", &sweep.batch, "batch sizes")->check(at_least(1));
  list("--heads", &sweep.heads, "query heads")->check(at_least(1));
  list("--kv-heads", &sweep.kv_heads, "key/value heads; like --heads")->check(at_least(1));
  list("--causal", &sweep.causal, "0, 1 or both")->check(CLI::Range(0, 1));
  list("--threads", &sweep.threads, "CPU threads; 0 = all cores")->check(CLI::Range(0, 1024));
  bench->add_option("--layout", flags->layout, "order of the operands in memory")
      ->check(CLI::IsMember({"bshd", "bhsd"}))
      ->capture_default_str();
  bench->add_option("--repeats", flags->repeats, "timed calls; 0 = at least 7, fewer if long")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  add_path(*bench, "--json", &flags->json, "append JSON lines to FILE; - = stdout, no table");
  auto compared = std::make_shared<std::vector<std::string>>();
  bench->add_option("--compare", *compared, "two files of --json: what became slower?")
      ->expected(2)
      ->type_name("OLD NEW");
  bench->footer(kBenchHelp);
  bench->callback([=] {
    if (compared->empty()) {
      run_bench(*flags);
    } else {
      compare_runs(compared->front(), compared->back());
    }
  });
}

constexpr const char* kInfoHelp = R"(
Examples:
  fa3 info                                           engines, and why one is missing
  fa3 info --seqlen 16384 --heads 32 --kv-heads 8 --head-dim 128 --dtype bf16 --causal
  fa3 info --batch 64 --seqlen 1 --seqlen-k 65536 --dtype bf16 --kv-dtype e4m3   a decode step
  fa3 info --engine hopper --dtype bf16 --seqlen 4096   would it run, and if not, why?)";

void add_info(CLI::App& app) {
  CLI::App* info = app.add_subcommand("info", "engines, the plan and memory of a shape");
  auto flags = std::make_shared<InfoFlags>();
  Shape& shape = flags->shape;
  const auto extent = [info](const char* name, int64_t* value, const char* help) {
    return info->add_option(name, *value, help)->check(at_least(0))->capture_default_str();
  };
  extent("--batch", &shape.batch, "sequences");
  extent("--heads", &shape.heads, "query heads");
  CLI::Option* kv_heads = extent("--kv-heads", &shape.kv_heads, "key/value heads; like --heads");
  extent("--seqlen", &shape.seqlen_q, "queries of a sequence");
  CLI::Option* seqlen_k = extent("--seqlen-k", &shape.seqlen_k, "its keys; like --seqlen");
  extent("--head-dim", &shape.head_dim, "of Q and K");
  CLI::Option* head_dim_v =
      extent("--head-dim-v", &shape.head_dim_v, "of V and O; like --head-dim");
  info->add_option("--dtype", flags->dtype, "element type")
      ->check(CLI::IsMember(kForwardDtypeNames))
      ->capture_default_str();
  info->add_option("--kv-dtype", flags->kv_dtype, "of K and V in a quantized cache")
      ->check(CLI::IsMember({"e4m3", "e5m2"}));
  info->add_flag("--sink", flags->sink, "with one more logit per query head");
  add_mask_flags(*info, &flags->mask);
  add_engine_flags(*info, &flags->engine);
  info->footer(kInfoHelp);
  info->callback([=] {
    InfoFlags given = *flags;
    if (kv_heads->empty()) given.shape.kv_heads = given.shape.heads;
    if (seqlen_k->empty()) given.shape.seqlen_k = given.shape.seqlen_q;
    if (head_dim_v->empty()) given.shape.head_dim_v = given.shape.head_dim;
    bool with_shape = false;
    for (const CLI::Option* option : info->get_options()) with_shape |= !option->empty();
    run_info(given, with_shape);
  });
}

void add_doctor(CLI::App& app) {
  CLI::App* doctor = app.add_subcommand("doctor", "does everything work here?");
  doctor->footer(R"(
Prints ok, warn or FAIL for each check and ends with what to do. Exit code 1 if a check failed.

Example:
  fa3 doctor)");
  doctor->callback(run_doctor);
}

void add_demo(CLI::App& app) {
  CLI::App* demo = app.add_subcommand("demo", "attention of a real model, checked and timed");
  auto flags = std::make_shared<DemoFlags>();
  add_path(*demo, "--data", &flags->data, "directory of minilm_layer*_{q,k,v}.npy")
      ->default_str("examples/data, else the installed one");
  demo->add_option("--seqlen", flags->seqlen, "length of the long sequence")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  demo->add_option("--dtype", flags->dtype, "element type; the files hold fp32")
      ->check(CLI::IsMember(kDtypeNames))
      ->capture_default_str();
  add_engine_flags(*demo, &flags->engine);
  demo->footer(R"(
Exit code 1 if a result is further from the reference than the rule of `fa3 verify` allows.

Examples:
  fa3 demo                                  in the sources three layers, installed one
  fa3 demo --data /path/to/examples/data --dtype bf16 --seqlen 32768
  fa3 demo --engine hopper --dtype bf16     on the GPU)");
  demo->callback([flags] { run_demo(*flags); });
}

constexpr const char* kFp8Help = R"(
Data: N(0,1) + N(0,100) Bernoulli(0.001), the outliers of the FlashAttention-3 paper, new ones for
each seed, and then Q, K and V of a trained transformer (examples/data); or .npy files of shape
(batch, seq, heads, dim). RMSE: root mean square of O minus that of the fp64 reference on the same
unrounded data; the median over the seeds. better: how many times smaller than with a scale per
tensor. FP8 rounds Q, K and V, and on a GPU the weights; outputs are fp16. With --engine hopper,
FlashAttention-2 is the engine ampere.

Examples:
  fa3 fp8                                            Table 3 of the paper, and more: a few minutes
  fa3 fp8 --engine hopper                            the same on a GPU
  fa3 fp8 --seqlen 1024 --seeds 3 --head-dim 64      some seconds
  fa3 fp8 --q Q.npy --k K.npy --v V.npy --causal     what it would cost your model)";

void add_fp8(CLI::App& app) {
  CLI::App* fp8 = app.add_subcommand("fp8", "the error of FP8 attention, by method");
  auto flags = std::make_shared<Fp8Flags>();
  add_path(*fp8, "--q", &flags->q, "queries, instead of random data");
  add_path(*fp8, "--k", &flags->k, "keys");
  add_path(*fp8, "--v", &flags->v, "values");
  fp8->add_option("--head-dim", flags->head_dim, "comma list")
      ->delimiter(',')
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  fp8->add_option("--seqlen", flags->seqlen, "queries and keys")
      ->check(at_least(1))
      ->capture_default_str();
  fp8->add_option("--heads", flags->heads, "heads")->check(at_least(1))->capture_default_str();
  fp8->add_option("--seeds", flags->seeds, "repetitions with other data")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_mask_flags(*fp8, &flags->mask);
  add_engine_flags(*fp8, &flags->engine);
  fp8->footer(kFp8Help);
  fp8->callback([flags] { run_fp8(*flags); });
}

// Commands that are written in Python. Typed without Python, the answer says where they are;
// python/fa3/__main__.py takes them before this program sees them.
void add_of_python(CLI::App& app, const std::string& name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help)->prefix_command();
  command->group("Subcommands of the Python package")->set_help_flag();
  command->callback([name] {
    throw CommandError(kExitUnsupported, name + ": expected the Python package, got the command " +
                                             "alone; install the package and run: python3 -m fa3 " +
                                             name);
  });
}

constexpr const char* kFooter = R"(
Exit codes: 0 all is well; 1 a check failed or the work could not be finished;
            2 wrong arguments or files; 3 right, but not possible on this machine.

Start with:
  fa3 doctor                      does everything work here?
  fa3 demo                        attention of a real model, checked and timed
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy
  fa3 <command> --help            options and examples)";

std::string version_text() {
  return "fa3 " + std::to_string(FA3_VERSION_MAJOR) + "." + std::to_string(FA3_VERSION_MINOR) +
         "." + std::to_string(FA3_VERSION_PATCH) + " (" + fa3::cli::commit() + ")";
}

// What was probably meant by the first word that the parser does not know, or that it is no
// subcommand; "" where the parser says more.
std::string did_you_mean(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  const CLI::App& command = parsed.empty() ? app : *parsed.front();
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const CLI::App* other : command.get_subcommands(nullptr)) known.push_back(other->get_name());
  for (const std::string& word : command.remaining()) {
    const std::string near = nearest(word.substr(0, word.find('=')), known);
    if (!near.empty()) {
      return command.get_name() + ": unknown " + word + "; did you mean " + near + "?\n";
    }
  }
  if (parsed.empty() && command.remaining_size() > 0) {
    return "fa3: unknown " + command.remaining().front() + "; fa3 --help names the subcommands\n";
  }
  return "";
}

}  // namespace

int parse_and_run(int argc, char** argv) {
  CLI::App app{"fa3: exact attention in O(N) memory", "fa3"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(kFooter);
  add_run(app);
  add_verify(app);
  add_bench(app);
  add_info(app);
  add_doctor(app);
  add_demo(app);
  add_fp8(app);
  add_of_python(app, "plot", "figures from the JSON lines of fa3 bench");
  add_of_python(app, "adopt", "fa3 under the names of flash_attn, for programs that import these");
  add_of_python(app, "replay", "a call whose inputs FA3_DUMP kept, beside double precision");
  if (argc == 1) {
    std::cout << app.help();
    flush_stdout();
    return kExitOk;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string meant = error.get_exit_code() == 0 ? "" : did_you_mean(app);
    if (!meant.empty()) {
      std::cerr << meant;
      return kExitBadInput;
    }
    if (app.exit(error) != 0) return kExitBadInput;  // --help is an "error" of code 0
  }
  flush_stdout();
  return kExitOk;
}

}  // namespace fa3::cli
