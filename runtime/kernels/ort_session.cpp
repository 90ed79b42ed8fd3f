// Sessions of ONNX Runtime as C functions, so that the compiled loop runs a pass without Python (runtime/kernels/session.py). A
// function that can fail returns null or -1, with ONNX Runtime's message in edgedec_session_error().
#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ort_operator.hpp"

#define EDGEDEC_API extern "C" __attribute__((visibility("default")))

namespace edgedec {

// The memory of a tensor, as `SessionTensor` of session.py lays it out. A dimension below 0 is one of the constants below.
struct SessionTensor {
    const char* name;
    void* data;
    int64_t bytes, type, rank;  // `type` is one of ONNXTensorElementDataType
    int64_t dims[4];
};

// As `SessionOptions` of session.py lays it out.
struct SessionOptions {
    const char* folder;   // of the weights that are stored in files
    const char* profile;  // beginning of the name of the profiler's file; null: no profile
    int64_t threads;      // 0: ONNX Runtime chooses it
    const SessionTensor* initializers;
    int64_t initializer_count;
    int64_t fused;  // 1: the model's nodes of the domain "edgedec" are all fused nodes, so the session needs no other operator
};

namespace {

// The dimensions that differ from run to run: rows, rows of results, and 64-bit words of a row of the mask.
constexpr int64_t kRows = -1, kResults = -2, kWords = -3;

constexpr size_t kMostBindings = 96;  // sizes of runs that stay bound, 5 KiB each

thread_local std::string last_error;

// The arrays of the session that this thread is opening, by name. ONNX Runtime makes all kernels on the thread that opens it.
using Received = std::unordered_map<std::string_view, const SessionTensor*>;
thread_local const Received* opening = nullptr;

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

class Session {
  public:
    explicit Session(const OrtApi& api)
        : api_(api), env_(nullptr, api.ReleaseEnv), memory_(nullptr, api.ReleaseMemoryInfo), session_(nullptr, api.ReleaseSession) {}

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
        Received received;
        for (int64_t at = 0; at < it.initializer_count; ++at) {
            const SessionTensor& one = it.initializers[at];
            received.emplace(one.name, &one);
            initializers_.emplace_back(nullptr, api_.ReleaseValue);
            EDGEDEC_TRY(tensor(one, 0, 0, initializers_.back()));
            EDGEDEC_TRY(api_.AddInitializer(options.get(), one.name, initializers_.back().get()));
        }
        opening = &received;
        OrtStatus* const failed = own(session_, [&](OrtSession** session) {
            return api_.CreateSessionFromArray(env_.get(), model, static_cast<size_t>(bytes), options.get(), session);
        });
        opening = nullptr;
        EDGEDEC_TRY(failed);
        return read_inputs();
    }

    // Sets the memory of the inputs and outputs. Inputs that the model does not have are left out.
    void bind(const SessionTensor* inputs, int64_t input_count, const SessionTensor* outputs, int64_t output_count) {
        const auto known = [&](const SessionTensor& it) {
            return std::find(input_names_.begin(), input_names_.end(), it.name) != input_names_.end();
        };
        std::vector<SessionTensor> ins, outs;
        std::copy_if(inputs, inputs + input_count, std::back_inserter(ins), known);
        std::copy_n(outputs, output_count, std::back_inserter(outs));
        std::deque<std::string> names;
        for (auto* list : {&ins, &outs})
            for (SessionTensor& it : *list) {
                names.emplace_back(it.name);  // the caller's names end with the call
                it.name = names.back().c_str();
            }
        bindings_.clear();  // from here on, nothing fails
        inputs_.swap(ins), outputs_.swap(outs), names_.swap(names);
    }

    OrtStatus* run(int64_t rows, int64_t results) {
        const OrtIoBinding* values = nullptr;
        EDGEDEC_TRY(bound(rows, results, &values));
        return api_.RunWithBinding(session_.get(), nullptr, values);
    }

    // Sets `path` to the profiler's file, which is complete then.
    OrtStatus* end_profile(std::string& path) {
        OrtAllocator* allocator = nullptr;
        EDGEDEC_TRY(api_.GetAllocatorWithDefaultOptions(&allocator));
        char* name = nullptr;
        EDGEDEC_TRY(api_.SessionEndProfiling(session_.get(), allocator, &name));
        path = name;
        return api_.AllocatorFree(allocator, name);
    }

  private:
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
        for (size_t at = 0; at < rank; ++at) {
            const int64_t size = it.dims[at];
            dims[at] = size == kRows ? n : size == kResults ? r : size == kWords ? (n + 63) / 64 : size;
        }
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

    const OrtApi& api_;
    Handle<OrtEnv> env_;
    Handle<OrtMemoryInfo> memory_;
    std::vector<Handle<OrtValue>> initializers_;
    Handle<OrtSession> session_;  // ends before its initializers
    std::vector<std::string> input_names_;
    std::vector<SessionTensor> inputs_, outputs_;
    std::deque<std::string> names_;
    std::vector<Binding> bindings_;
};

// Calls a function that returns an OrtStatus*. Returns 0, or -1 after an error.
template <class Function>
int32_t checked(const Function& function) {
    try {
        OrtStatus* status = function();
        if (!status) return 0;
        last_error = ort->GetErrorMessage(status);
        ort->ReleaseStatus(status);
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return -1;
}

}  // namespace

bool received_array(std::string_view name, Value& value) {
    if (!opening) return false;
    const auto found = opening->find(name);
    if (found == opening->end()) return false;
    const SessionTensor& it = *found->second;
    value.shape.type = static_cast<ONNXTensorElementDataType>(it.type);
    value.shape.dims.assign(it.dims, it.dims + it.rank);
    value.shape.count = 1;
    for (int64_t size : value.shape.dims) value.shape.count *= size;
    value.data = it.data;
    return true;
}

}  // namespace edgedec

// Sizes of the structures, which Python compares with its own: kind 0 of a tensor, 1 of the options.
EDGEDEC_API int64_t edgedec_session_argument_size(int64_t kind) {
    return static_cast<int64_t>(kind == 0 ? sizeof(edgedec::SessionTensor) : sizeof(edgedec::SessionOptions));
}

EDGEDEC_API const char* edgedec_session_error() { return edgedec::last_error.c_str(); }

// Opens a session of a model. The operators must have been registered once (RegisterCustomOps). The memory of the initializers
// must outlive the session.
EDGEDEC_API void* edgedec_session_open(const void* model, int64_t bytes, const edgedec::SessionOptions* options) {
    if (!edgedec::ort) {
        edgedec::last_error = "the operators were not registered";
        return nullptr;
    }
    std::unique_ptr<edgedec::Session> session;
    const int32_t failed = edgedec::checked([&] {
        session = std::make_unique<edgedec::Session>(*edgedec::ort);
        return session->open(model, bytes, *options);
    });
    return failed ? nullptr : session.release();
}

EDGEDEC_API void edgedec_session_close(void* session) { delete static_cast<edgedec::Session*>(session); }

// Sets the memory of inputs and outputs for all runs that follow.
EDGEDEC_API int32_t edgedec_session_bind(void* session, const edgedec::SessionTensor* inputs, int64_t input_count,
                                         const edgedec::SessionTensor* outputs, int64_t output_count) {
    return edgedec::checked([&]() -> OrtStatus* {
        static_cast<edgedec::Session*>(session)->bind(inputs, input_count, outputs, output_count);
        return nullptr;
    });
}

// Runs a pass over a number of rows.
EDGEDEC_API int32_t edgedec_session_run(void* session, int64_t rows, int64_t results) {
    return edgedec::checked([&] { return static_cast<edgedec::Session*>(session)->run(rows, results); });
}

// Ends the profile and returns the name of its file; null after an error.
EDGEDEC_API const char* edgedec_session_end_profile(void* session) {
    thread_local std::string path;
    return edgedec::checked([&] { return static_cast<edgedec::Session*>(session)->end_profile(path); }) ? nullptr : path.c_str();
}
