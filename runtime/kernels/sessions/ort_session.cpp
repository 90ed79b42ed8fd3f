// Sessions of ONNX Runtime, for models with operations that the project has no operator for. They are sessions of the ONNX Runtime
// in the Python package, opened through its C interface.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sessions/session.hpp"

namespace edgedec {
namespace {

constexpr size_t kMostBindings = 96;  // sizes of runs that stay bound, 5 KiB each

// An object of ONNX Runtime.
template <class T>
using Handle = std::unique_ptr<T, void (*)(T*)>;

// Sets `handle` to what `make(T**)` makes.
template <class T, class Make>
OrtStatus* own(Handle<T>& handle, const Make& make) {
    T* object = nullptr;
    EDGEDEC_TRY(make(&object));
    handle.reset(object);
    return nullptr;
}

// A number of rows and of rows of results, with its inputs and outputs.
struct Binding {
    int64_t rows, results;
    Handle<OrtIoBinding> values;
};

class OrtModelSession final : public Session {
  public:
    explicit OrtModelSession(const OrtApi& api)
        : Session(api), env_(nullptr, api.ReleaseEnv), memory_(nullptr, api.ReleaseMemoryInfo), session_(nullptr, api.ReleaseSession) {}

    OrtStatus* open(const void* model, int64_t bytes, const SessionOptions& it) {
        // The process has one environment, that of the Python package.
        EDGEDEC_TRY(own(env_, [&](OrtEnv** env) { return api_.CreateEnv(ORT_LOGGING_LEVEL_ERROR, "edgedec", env); }));
        EDGEDEC_TRY(own(memory_, [&](OrtMemoryInfo** info) {
            return api_.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, info);
        }));
        Handle<OrtSessionOptions> options(nullptr, api_.ReleaseSessionOptions);
        EDGEDEC_TRY(own(options, api_.CreateSessionOptions));
        EDGEDEC_TRY(api_.SetSessionLogSeverityLevel(options.get(), ORT_LOGGING_LEVEL_ERROR));
        EDGEDEC_TRY(api_.SetIntraOpNumThreads(options.get(), static_cast<int>(it.threads)));
        // Activations are in an arena and not on the C heap, where passes of different widths fragmented the memory between
        // long-lived small blocks (60 MiB after 40 MiB of activations). Weights are not in the arena.
        EDGEDEC_TRY(api_.EnableCpuMemArena(options.get()));
        // The graph is made of the project's operators, which ONNX Runtime's other optimizations do not know.
        EDGEDEC_TRY(api_.SetSessionGraphOptimizationLevel(options.get(), ORT_ENABLE_BASIC));
        EDGEDEC_TRY(api_.DisableMemPattern(options.get()));  // it would keep a block for each width of a pass
        EDGEDEC_TRY(api_.AddSessionConfigEntry(options.get(), "session.use_device_allocator_for_initializers", "1"));
        EDGEDEC_TRY(api_.AddSessionConfigEntry(options.get(), "session.model_external_initializers_file_folder_path", it.folder));
        if (it.profile) EDGEDEC_TRY(api_.EnableProfiling(options.get(), it.profile));
        EDGEDEC_TRY(add_operators(options.get(), !it.fused));
        for (int64_t at = 0; at < it.initializer_count; ++at) {
            initializers_.emplace_back(nullptr, api_.ReleaseValue);
            EDGEDEC_TRY(tensor(it.initializers[at], 0, 0, initializers_.back()));
            EDGEDEC_TRY(api_.AddInitializer(options.get(), it.initializers[at].name, initializers_.back().get()));
        }
        const Opening opening(it);
        EDGEDEC_TRY(own(session_, [&](OrtSession** session) {
            return api_.CreateSessionFromArray(env_.get(), model, static_cast<size_t>(bytes), options.get(), session);
        }));
        return read_inputs();
    }

    OrtStatus* run(int64_t rows, int64_t results) override {
        const OrtIoBinding* values = nullptr;
        EDGEDEC_TRY(bound(rows, results, &values));
        return api_.RunWithBinding(session_.get(), nullptr, values);
    }

    OrtStatus* end_profile(std::string& path) override {
        OrtAllocator* allocator = nullptr;
        EDGEDEC_TRY(api_.GetAllocatorWithDefaultOptions(&allocator));
        char* name = nullptr;
        EDGEDEC_TRY(api_.SessionEndProfiling(session_.get(), allocator, &name));
        path = name;
        return api_.AllocatorFree(allocator, name);
    }

  private:
    void unbind() override { bindings_.clear(); }

    OrtStatus* read_inputs() {
        OrtAllocator* allocator = nullptr;
        size_t count = 0;
        EDGEDEC_TRY(api_.GetAllocatorWithDefaultOptions(&allocator));
        EDGEDEC_TRY(api_.SessionGetInputCount(session_.get(), &count));
        for (size_t at = 0; at < count; ++at) {
            char* name = nullptr;
            EDGEDEC_TRY(api_.SessionGetInputName(session_.get(), at, allocator, &name));
            input_names_.emplace_back(name);
            EDGEDEC_TRY(api_.AllocatorFree(allocator, name));
        }
        return nullptr;
    }

    OrtStatus* tensor(const SessionTensor& it, int64_t n, int64_t r, Handle<OrtValue>& value) const {
        std::array<int64_t, 4> dims{};
        const auto rank = static_cast<size_t>(it.rank);
        for (size_t at = 0; at < rank; ++at) dims[at] = size_of_dim(it.dims[at], n, r);
        return own(value, [&](OrtValue** made) {
            return api_.CreateTensorWithDataAsOrtValue(memory_.get(), it.data, static_cast<size_t>(it.bytes), dims.data(), rank,
                                                       static_cast<ONNXTensorElementDataType>(it.type), made);
        });
    }

    OrtStatus* bound(int64_t rows, int64_t results, const OrtIoBinding** values) {
        for (const Binding& it : bindings_)
            if (it.rows == rows && it.results == results) {
                *values = it.values.get();
                return nullptr;
            }
        Binding made{rows, results, {nullptr, api_.ReleaseIoBinding}};
        EDGEDEC_TRY(own(made.values, [&](OrtIoBinding** it) { return api_.CreateIoBinding(session_.get(), it); }));
        for (const SessionTensor& it : inputs_) {
            Handle<OrtValue> value(nullptr, api_.ReleaseValue);
            EDGEDEC_TRY(tensor(it, rows, results, value));
            EDGEDEC_TRY(api_.BindInput(made.values.get(), it.name, value.get()));
        }
        for (const SessionTensor& it : outputs_) {
            Handle<OrtValue> value(nullptr, api_.ReleaseValue);
            EDGEDEC_TRY(tensor(it, rows, results, value));
            EDGEDEC_TRY(api_.BindOutput(made.values.get(), it.name, value.get()));
        }
        if (bindings_.size() == kMostBindings) bindings_.erase(bindings_.begin());
        bindings_.push_back(std::move(made));
        *values = bindings_.back().values.get();
        return nullptr;
    }

    Handle<OrtEnv> env_;
    Handle<OrtMemoryInfo> memory_;
    std::vector<Handle<OrtValue>> initializers_;
    Handle<OrtSession> session_;  // ends before its initializers
    std::vector<Binding> bindings_;
};

}  // namespace

std::unique_ptr<Session> open_with_onnxruntime(const void* model, int64_t bytes, const SessionOptions& options, OrtStatus** status) {
    auto session = std::make_unique<OrtModelSession>(*ort);
    *status = session->open(model, bytes, options);
    return session;
}

}  // namespace edgedec
