#include "harness.hpp"

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "exec/bf16.hpp"

namespace millrace::test {
namespace {

// Round to nearest even; enough for the magnitudes of tests.
uint16_t to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f)
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  int exponent;
  const float fraction = std::frexp(magnitude, &exponent);              // [0.5, 1)
  const auto bits = static_cast<int>(std::nearbyint(fraction * 2048));  // [1024, 2048]
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + bits - 1024);
}

// The backend under test: a shared library's that MILLRACE_BACKEND_LIBRARY names,
// else the CPU's.
const mr_backend* tested_backend() {
  const char* path = std::getenv("MILLRACE_BACKEND_LIBRARY");
  if (path == nullptr || *path == '\0') return millrace_backend_cpu();
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry =
      reinterpret_cast<decltype(&millrace_backend_cpu)>(dlsym(library, "millrace_backend"));
  if (entry == nullptr) throw std::runtime_error(dlerror());
  const mr_backend* backend = entry();
  if (backend->abi_version != MR_ABI_VERSION) throw std::runtime_error("another ABI version");
  return backend;
}

std::vector<std::string> machine_isas() {
  mr_device_config config{};
  config.threads = 1;
  mr_error error;
  mr_device* device = nullptr;
  const mr_backend* cpu = tested_backend();
  check(cpu->device_open(&config, &device, &error), error);
  mr_device_info info;
  check(cpu->device_info(device, &info, &error), error);
  cpu->device_close(device);
  std::vector<std::string> isas;
  std::istringstream names(info.isas);
  for (std::string name; std::getline(names, name, ',');) isas.push_back(name);
  return isas;
}

std::vector<std::string> select_isas() {
  const std::vector<std::string> runs = machine_isas();
  const char* forced = std::getenv("MILLRACE_ISA");
  std::vector<std::string> isas;
  for (const char* isa : {"amx", "avx512-bf16", "avx512", "avx2", "portable", "mma", "xmx", "simd",
                          "xmx-onednn", "simd-onednn"}) {
    bool able = false;
    for (const std::string& name : runs) able = able || name == isa;
    const bool wanted = forced == nullptr || *forced == '\0' || std::strcmp(forced, isa) == 0;
    if (able && wanted) {
      isas.push_back(isa);
    } else {
      std::fprintf(stderr, "NOT TESTED: instruction set %s: %s\n", isa,
                   able ? "MILLRACE_ISA forces another" : "this machine cannot run it");
    }
  }
  if (isas.empty()) throw std::runtime_error("MILLRACE_ISA names nothing that this machine runs");
  return isas;
}

}  // namespace

float Random::normal() {
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(engine_() >> 8) * 0x1p-24f - 0.5f;
  return sum * 1.7320508f;
}

std::vector<int32_t> Random::tokens(int n, int vocab) {
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = below(vocab);
  return tokens;
}

double normalized_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) throw std::logic_error("normalized_error of different sizes");
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - b[i];
    error += difference * difference;
    size += double{b[i]} * b[i];
  }
  return size > 0 ? error / size : error;
}

// ---- Builder

std::string Kept::name() const {
  static constexpr const char* kNames[] = {"bits16", "int8", "int4", "fp8", "nf4"};
  std::string name = kNames[weights];
  if (group > 0) name.append("_").append(std::to_string(group));
  return name;
}

void Builder::keep(const Kept& kept) {
  for (mr_op& op : ops) {
    if (op.kind != MR_OP_LINEAR) continue;
    op.linear.weights = kept.weights;
    op.linear.group = kept.group;
  }
}

void Builder::see_all() {
  for (mr_op& op : ops) {
    if (has_heads(op)) op.attention.window = 0;
  }
}

int Builder::slot(mr_slot_type type, int width) {
  slots.push_back({type, width});
  return static_cast<int>(slots.size()) - 1;
}

int Builder::tensor(const std::vector<float>& values, int64_t rows, int64_t cols, mr_dtype dtype) {
  mr_tensor t{nullptr, dtype, cols == 0 ? 1 : 2, {rows, cols}, 0, nullptr};
  if (dtype == MR_F32) {
    t.data = floats_.emplace_back(values).data();
  } else {
    std::vector<uint16_t>& bits = halves_.emplace_back();
    for (const float x : values) bits.push_back(dtype == MR_F16 ? to_f16(x) : cpu::from_float(x));
    t.data = bits.data();
  }
  tensors.push_back(t);
  return static_cast<int>(tensors.size()) - 1;
}

int Builder::random(Random& random, int64_t rows, int64_t cols, mr_dtype dtype, float scale,
                    float mean) {
  std::vector<float> values(rows * (cols == 0 ? 1 : cols));
  for (float& x : values) x = mean + scale * random.normal();
  return tensor(values, rows, cols, dtype);
}

mr_op& Builder::op(mr_op_kind kind, int in, int out) {
  mr_op op{};
  op.kind = kind;
  op.layer = -1;
  op.in = in;
  op.out = out;
  switch (kind) {
    case MR_OP_EMBED:
      op.embed.table = op.embed.positions = op.embed.types = -1;
      op.embed.scale = 1;
      break;
    case MR_OP_NORM:
      op.norm.weight = op.norm.bias = -1;
      break;
    case MR_OP_ROUTE:
      op.route.bias = op.route.factors = -1;
      break;
    case MR_OP_ROPE_STORE:
    case MR_OP_ATTENTION:
      op.attention.q_norm = op.attention.k_norm = op.attention.null_scores = -1;
      op.attention.rotary_scale = 1;
      break;
    default:
      break;
  }
  return ops.emplace_back(op);
}

mr_op& Builder::embed(int table, int out) {
  mr_op& o = op(MR_OP_EMBED, -1, out);
  o.embed.table = table;
  return o;
}

mr_op& Builder::norm(int in, int weight, int out) {
  mr_op& o = op(MR_OP_NORM, in, out);
  o.norm.weight = weight;
  o.norm.eps = 1e-5f;
  return o;
}

mr_op& Builder::linear(int in, std::vector<mr_part> parts, int out) {
  mr_op& o = op(MR_OP_LINEAR, in, out);
  for (const mr_part& p : parts) o.linear.parts[o.linear.n_parts++] = p;
  return o;
}

mr_op& Builder::rope_store(int layer, int in, int heads) {
  mr_op& o = op(MR_OP_ROPE_STORE, in, -1);
  o.layer = layer;
  o.attention.heads = heads;
  o.attention.kv_heads = kv_heads;
  o.attention.head_dim = head_dim;
  o.attention.eps = 1e-6f;
  return o;
}

mr_op& Builder::attention(int layer, int in, int heads, int out) {
  mr_op& o = rope_store(layer, in, heads);
  o.kind = MR_OP_ATTENTION;
  o.out = out;
  o.attention.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  return o;
}

mr_part Builder::part(int weight, int bias) const {
  const int64_t rows = tensors[weight].dims[0];
  return {weight, bias, 0, rows, rows, 0, 0, 0};
}

const mr_part* Builder::parts(std::vector<mr_part> parts) {
  return parts_.emplace_back(std::move(parts)).data();
}

const float* Builder::constant(std::vector<float> values) {
  return floats_.emplace_back(std::move(values)).data();
}

const float* Builder::inv_freq(int rotary_dim, float base) {
  std::vector<float> values;
  for (int i = 0; i < rotary_dim; i += 2) {
    values.push_back(std::pow(base, -static_cast<float>(i) / static_cast<float>(rotary_dim)));
  }
  return constant(values);
}

mr_program_desc Builder::desc() {
  mr_program_desc d{};
  d.ops = ops.data();
  d.slots = slots.data();
  d.tensors = tensors.data();
  d.n_ops = static_cast<int32_t>(ops.size());
  d.n_slots = static_cast<int32_t>(slots.size());
  d.n_tensors = static_cast<int32_t>(tensors.size());
  d.vocab = vocab;
  d.layers = layers;
  d.kv_groups = kv_groups;
  d.max_positions = max_positions;
  d.max_rows = max_rows;
  d.max_outputs = max_outputs;
  d.max_hidden = max_hidden;
  d.classes = classes;
  d.kv_type = kv_type;
  d.packed = packed;
  d.packed_bytes = packed_bytes;
  return d;
}

Builder small_llama(mr_dtype dtype, int window) {
  constexpr int kHidden = 72, kHeads = 6, kForward = 100;
  constexpr float kScale = 0.12f;
  Random random(11);
  Builder b;
  b.vocab = 97;
  b.layers = 2;
  b.kv_heads = 2;
  b.head_dim = 40;
  const int q_width = kHeads * b.head_dim, kv_width = b.kv_heads * b.head_dim;
  const int x = b.slot(MR_SLOT_F32, kHidden), normed = b.slot(MR_SLOT_OPERAND, kHidden);
  const int qkv = b.slot(MR_SLOT_F32, q_width + 2 * kv_width);
  const int heads = b.slot(MR_SLOT_OPERAND, q_width);
  const int forward = b.slot(MR_SLOT_OPERAND, kForward);
  const int last = b.slot(MR_SLOT_F32, kHidden), logits = b.slot(MR_SLOT_F32, b.vocab);
  const auto matrix = [&](int rows, int cols) {
    return b.random(random, rows, cols, dtype, kScale);
  };
  const auto gain = [&] { return b.random(random, kHidden, 0, dtype, 0.1f, 1.0f); };
  b.embed(b.random(random, b.vocab, kHidden, dtype, 1.0f), x);
  for (int layer = 0; layer < b.layers; ++layer) {
    b.norm(x, gain(), normed);
    b.linear(normed,
             {b.part(matrix(q_width, kHidden)), b.part(matrix(kv_width, kHidden)),
              b.part(matrix(kv_width, kHidden))},
             qkv);
    mr_op& rope = b.rope_store(layer, qkv, kHeads);
    rope.attention.rotary_dim = b.head_dim;
    rope.attention.inv_freq = b.inv_freq(b.head_dim);
    b.attention(layer, qkv, kHeads, heads).attention.window = layer == 1 ? window : 0;
    b.linear(heads, {b.part(matrix(kHidden, q_width))}, x).linear.accumulate = 1;
    b.norm(x, gain(), normed);
    mr_op& up = b.linear(
        normed, {b.part(matrix(kForward, kHidden)), b.part(matrix(kForward, kHidden))}, forward);
    up.linear.gated = 1;
    up.linear.activation = MR_ACT_SILU;
    b.linear(forward, {b.part(matrix(kHidden, kForward))}, x).linear.accumulate = 1;
  }
  b.select_rows(x, last);
  const int final_normed = b.slot(MR_SLOT_OPERAND, kHidden);
  b.norm(last, gain(), final_normed);
  b.linear(final_normed, {b.part(matrix(b.vocab, kHidden))}, logits);
  return b;
}

Builder small_llama_with_sinks(int sinks, int window) {
  Builder b = small_llama();
  int sink_q = -1;
  for (mr_op& op : b.ops) {
    if (!has_heads(op)) continue;
    if (sink_q < 0) sink_q = b.slot(MR_SLOT_F32, op.attention.heads * op.attention.head_dim);
    op.attention.window = window;
    op.attention.sinks = sinks;
    op.attention.sink_q = sink_q;
  }
  return b;
}

// ---- Device, Model, Sequence

// An instruction set's name without the KV cache.
static std::string plain(const std::string& isa) { return isa.substr(0, isa.find('+')); }

void check(int32_t status, const mr_error& error) {
  if (status != MR_OK) throw Failure(error);
}

Device::Device(const std::string& name, int threads)
    : backend(plain(name) == "ref" ? millrace_backend_ref() : tested_backend()) {
  const std::string isa = plain(name);
  mr_device_config config{};
  config.threads = threads;
  if (isa != "ref") std::snprintf(config.isa, sizeof config.isa, "%s", isa.c_str());
  mr_error error;
  check(backend->device_open(&config, &handle, &error), error);
}

Device::~Device() { backend->device_close(handle); }

Model::Model(const std::string& isa, Builder& builder, int slabs, int threads)
    : device(isa, threads),
      vocab(builder.vocab),
      classes(builder.classes > 0 ? builder.classes : builder.vocab),
      max_positions(builder.max_positions),
      groups(builder.kv_groups) {
  mr_program_desc desc = builder.desc();
  if (isa.ends_with("+int8")) desc.kv_type = MR_KV_INT8;
  if (isa.ends_with("+int4")) desc.kv_type = MR_KV_INT4;
  if (isa.ends_with("+kivi")) desc.kv_type = MR_KV_KIVI;
  mr_error error;
  check(device.backend->program_load(device.handle, &desc, &handle, &error), error);
  if (slabs == 0) return;
  const int32_t status = device.backend->kv_reserve(handle, slabs, &error);
  if (status != MR_OK) device.backend->program_unload(handle);
  check(status, error);
}

bool refuses(const std::string& isa, Builder& builder, const std::string& why) {
  try {
    Model(isa, builder, 0);
  } catch (const Failure& failure) {
    const std::string text = failure.what();
    if (failure.status != MR_UNSUPPORTED || text.find(why) == std::string::npos) throw;
    static std::set<std::string> printed;
    if (printed.insert(text).second) std::fprintf(stderr, "NOT TESTED: %s\n", text.c_str());
    return true;
  }
  return false;
}

Model::~Model() { device.backend->program_unload(handle); }

void Model::run(const mr_step& step) {
  mr_error error;
  check(device.backend->program_run(handle, &step, &error), error);
}

mr_program_info Model::info() const {
  mr_program_info info;
  mr_error error;
  check(device.backend->program_info(handle, &info, &error), error);
  return info;
}

std::vector<float> Model::step(const std::vector<Rows>& rows, int outputs) {
  std::vector<int32_t> tokens, output_rows;
  std::vector<mr_sequence> sequences;
  for (const Rows& r : rows) {
    Sequence& s = *r.sequence;
    const auto n = static_cast<int32_t>(r.tokens.size());
    s.reach(s.position + n);
    sequences.push_back(
        {s.region, static_cast<int32_t>(tokens.size()), n, s.position, r.second, nullptr});
    tokens.insert(tokens.end(), r.tokens.begin(), r.tokens.end());
  }
  const auto total = static_cast<int32_t>(tokens.size());
  if (outputs < 0) outputs = total;
  for (int i = total - outputs; i < total; ++i) output_rows.push_back(i);
  std::vector<float> logits(size_t(outputs) * classes);
  mr_step step{};
  step.tokens = tokens.data();
  step.sequences = sequences.data();
  step.output_rows = output_rows.data();
  step.logits = logits.data();
  step.op_times = op_times.empty() ? nullptr : op_times.data();
  step.rows = total;
  step.n_sequences = static_cast<int32_t>(sequences.size());
  step.outputs = outputs;
  run(step);
  for (const Rows& r : rows) r.sequence->position += static_cast<int>(r.tokens.size());
  return logits;
}

bool keeps_logits(const Model& model) {
  mr_device_info info;
  mr_error error;
  check(model.device.backend->device_info(model.device.handle, &info, &error), error);
  return info.keeps_logits != 0;
}

Sequence::Sequence(Model& m) : model(m), head(m.info().head_slabs) {
  mr_error error;
  check(model.device.backend->region_create(model.handle, places(), &region, &error), error);
}

Sequence::~Sequence() { model.device.backend->region_destroy(region); }

int Sequence::places() const {
  return head + (model.max_positions + MR_SLAB_TOKENS - 1) / MR_SLAB_TOKENS;
}

void Sequence::reach(int end) {
  const int most = model.info().most_slabs;
  if (most > 0) end = std::min(end, most * MR_SLAB_TOKENS);
  while ((static_cast<int>(slabs.size()) / model.groups - head) * MR_SLAB_TOKENS < end) {
    for (int group = 0; group < model.groups; ++group) map(model.next_slab++);
  }
}

void Sequence::share(const Sequence& from, int tokens) {
  if (tokens % MR_SLAB_TOKENS != 0) throw std::logic_error("a part of a slab is not shared");
  for (int i = 0; i < tokens / MR_SLAB_TOKENS * model.groups; ++i) map(from.slabs[i]);
  position = tokens;
}

void Sequence::map(int32_t slab) {
  const auto next = static_cast<int32_t>(slabs.size());
  const int32_t place = next % model.groups * places() + next / model.groups;
  mr_error error;
  check(model.device.backend->region_map(region, place, &slab, 1, &error), error);
  slabs.push_back(slab);
}

bool on_device() { return std::getenv("MILLRACE_BACKEND_LIBRARY") != nullptr; }

const std::vector<std::string>& tested_isas() {
  static const std::vector<std::string> isas = select_isas();
  return isas;
}

const std::vector<std::string>& tested_kv() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> have = {""};
    for (const char* kv : {"+int8", "+int4"}) {
      Builder b = small_llama();
      if (!refuses(tested_isas().front() + kv, b, "")) have.push_back(kv);
    }
    return have;
  }();
  return all;
}

const std::vector<Kept>& quantized_weights() {
  static const std::vector<Kept> all = [] {
    std::vector<Kept> have;
    for (const Kept& kept :
         {Kept{MR_WEIGHTS_INT8}, Kept{MR_WEIGHTS_INT4, 32}, Kept{MR_WEIGHTS_INT4, 64},
          Kept{MR_WEIGHTS_INT4, 128}, Kept{MR_WEIGHTS_FP8}, Kept{MR_WEIGHTS_NF4, 64}}) {
      Builder b = small_llama();
      b.keep(kept);
      if (!refuses(tested_isas().front(), b, "")) have.push_back(kept);
    }
    return have;
  }();
  return all;
}

std::vector<Kept> tested_weights() {
  std::vector<Kept> all = {{}};
  all.insert(all.end(), quantized_weights().begin(), quantized_weights().end());
  return all;
}

std::vector<std::string> with_kv(const std::vector<std::string>& isas) {
  std::vector<std::string> all;
  for (const std::string& kv : tested_kv()) {
    for (const std::string& isa : isas) all.push_back(isa + kv);
  }
  return all;
}

std::string ref_of(const std::string& isa) {
  const size_t plus = isa.find('+');
  return plus == std::string::npos ? "ref" : "ref" + isa.substr(plus);
}

std::string isa_label(const std::string& isa) {
  std::string label = isa;
  for (char& c : label) c = c == '-' || c == '+' ? '_' : c;
  return label;
}

bool rounds_products(const std::string& isa) { return !isa.starts_with("ref"); }

}  // namespace millrace::test
