// The adapter to ONNX Runtime: the one file that knows its C interface. Operators become those of its domain "edgedec", and models
// with operations that the project has no operator for run in its sessions, those of the Python package.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnxruntime/onnxruntime_c_api.h"
#include "operators/operator.hpp"
#include "products/ternary.hpp"
#include "sessions/session.hpp"

namespace edgedec {
namespace {

// The interface of the ONNX Runtime that loaded the library; null: none has.
const OrtApi* ort = nullptr;

template <class Own, class Vendors>
constexpr bool same(Own own, Vendors vendors) {
    return static_cast<int64_t>(own) == static_cast<int64_t>(vendors);
}

static_assert(same(Status::kFailed, ORT_FAIL) && same(Status::kInvalid, ORT_INVALID_ARGUMENT));
static_assert(same(ElementType::float32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
static_assert(same(ElementType::uint8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8));
static_assert(same(ElementType::int8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8));
static_assert(same(ElementType::int32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32));
static_assert(same(ElementType::int64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64));
static_assert(same(ElementType::float16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16));

// Returns a status of ONNX Runtime as one of the project's.
Status taken(OrtStatus* status) {
    if (!status) return {};
    const std::unique_ptr<OrtStatus, decltype(ort->ReleaseStatus)> owned(status, ort->ReleaseStatus);
    return {static_cast<int32_t>(ort->GetErrorCode(status)), ort->GetErrorMessage(status)};
}

// Returns the status of `body` as one of ONNX Runtime. No exception may pass into it.
template <class Body>
OrtStatus* given(const Body& body) {
    const Status status = guarded(body);
    if (!status) return nullptr;
    return ort->CreateStatus(static_cast<OrtErrorCode>(status.failure().code), status.failure().message.c_str());
}

// An object of ONNX Runtime.
template <class T>
using Handle = std::unique_ptr<T, void (*)(T*)>;

// Sets `handle` to what `make(T**)` makes.
template <class T, class Make>
Status own(Handle<T>& handle, const Make& make) {
    T* object = nullptr;
    EDGEDEC_TRY(taken(make(&object)));
    handle.reset(object);
    return {};
}

// Sets `text` to what `read(char*, size_t*)` reads, which tells the size first and ends with a zero.
template <class Read>
Status read_text(std::string& text, const Read& read) {
    size_t length = 0;
    EDGEDEC_TRY(taken(read(nullptr, &length)));
    text.resize(length);
    EDGEDEC_TRY(taken(read(text.data(), &length)));
    text.resize(length ? length - 1 : 0);
    return {};
}

Status read_tensor(const OrtValue* value, Shape& shape, void** data) {
    Handle<OrtTensorTypeAndShapeInfo> info(nullptr, ort->ReleaseTensorTypeAndShapeInfo);
    EDGEDEC_TRY(own(info, [&](OrtTensorTypeAndShapeInfo** made) { return ort->GetTensorTypeAndShape(value, made); }));
    ONNXTensorElementDataType type{};
    size_t rank = 0;
    EDGEDEC_TRY(taken(ort->GetTensorElementType(info.get(), &type)));
    EDGEDEC_TRY(taken(ort->GetDimensionsCount(info.get(), &rank)));
    shape.type = static_cast<ElementType>(type);
    shape.dims.resize(rank);
    EDGEDEC_TRY(taken(ort->GetDimensions(info.get(), shape.dims.data(), rank)));
    shape.counted();
    return taken(ort->GetTensorMutableData(const_cast<OrtValue*>(value), data));
}

// A node of a session of ONNX Runtime.
class SessionNode final : public NodeInfo {
  public:
    explicit SessionNode(const OrtKernelInfo* info) : info_(info) {}

    Status name(std::string& value) const override {
        return read_text(value, [&](char* text, size_t* size) { return ort->KernelInfo_GetNodeName(info_, text, size); });
    }
    Status integer(const char* name, int64_t* value) const override {
        return taken(ort->KernelInfoGetAttribute_int64(info_, name, value));
    }
    Status number(const char* name, float* value) const override {
        return taken(ort->KernelInfoGetAttribute_float(info_, name, value));
    }
    Status text(const char* name, std::string& value) const override {
        return read_text(value, [&](char* text, size_t* size) {
            return ort->KernelInfoGetAttribute_string(info_, name, text, size);
        });
    }
    Status list(const char* name, std::vector<int64_t>& values) const override {
        return read_list(name, values, ort->KernelInfoGetAttributeArray_int64);
    }
    Status list(const char* name, std::vector<float>& values) const override {
        return read_list(name, values, ort->KernelInfoGetAttributeArray_float);
    }
    Status counts(size_t* inputs, size_t* outputs) const override {
        EDGEDEC_TRY(taken(ort->KernelInfo_GetInputCount(info_, inputs)));
        return taken(ort->KernelInfo_GetOutputCount(info_, outputs));
    }
    Status initializer(size_t index, Value& value) const override {
        value = Value{};
        int is_constant = 0;
        const OrtValue* tensor = nullptr;
        EDGEDEC_TRY(taken(ort->KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &tensor)));
        return is_constant ? read_tensor(tensor, value.shape, &value.data) : Status();
    }

  private:
    template <class T, class Read>
    Status read_list(const char* name, std::vector<T>& values, const Read& read) const {
        size_t size = 0;
        EDGEDEC_TRY(taken(read(info_, name, nullptr, &size)));
        values.resize(size);
        return taken(read(info_, name, values.data(), &size));
    }

    const OrtKernelInfo* info_;
};

// The same node while it runs.
class SessionContext final : public NodeContext {
  public:
    explicit SessionContext(OrtKernelContext* context) : context_(context) {}

    Status input(size_t index, Shape& shape, void** data) override {
        const OrtValue* value = nullptr;
        EDGEDEC_TRY(taken(ort->KernelContext_GetInput(context_, index, &value)));
        return read_tensor(value, shape, data);
    }
    Status output(size_t index, const std::vector<int64_t>& dims, float** data) override {
        OrtValue* value = nullptr;
        EDGEDEC_TRY(taken(ort->KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &value)));
        void* address = nullptr;
        EDGEDEC_TRY(taken(ort->GetTensorMutableData(value, &address)));
        *data = static_cast<float*>(address);
        return {};
    }
    Status parallel(void (*work)(void*, size_t), size_t count, void* user) override {
        return taken(ort->KernelContext_ParallelFor(context_, work, count, 0, user));
    }

  private:
    OrtKernelContext* context_;
};

// A kind of operator as ONNX Runtime knows it. Inputs and outputs are variadic lists of any type, which the operator checks.
struct Described final : OrtCustomOp {
    explicit Described(const OperatorKind& own) : OrtCustomOp{}, kind(own) {
        version = ORT_API_VERSION;
        GetName = [](const OrtCustomOp* op) { return static_cast<const Described*>(op)->kind.name; };
        GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
        GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
        GetInputType = [](const OrtCustomOp*, size_t index) {
            return index ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
        };
        GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
        GetOutputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
        GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
            return index ? INPUT_OUTPUT_VARIADIC : INPUT_OUTPUT_REQUIRED;
        };
        GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
        GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
        GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
        GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
        GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
        GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
        CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** made) -> OrtStatusPtr {
            return given([&]() -> Status {
                std::unique_ptr<Operator> kernel = static_cast<const Described*>(op)->kind.make();
                EDGEDEC_TRY(kernel->create(SessionNode(info)));
                *made = kernel.release();
                return {};
            });
        };
        KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
            SessionContext session(context);
            return given([&] { return static_cast<const Operator*>(kernel)->compute(session); });
        };
        KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
        GetStartVersion = [](const OrtCustomOp*) { return 1; };
        GetEndVersion = [](const OrtCustomOp*) { return 1; };
    }

    OperatorKind kind;
};

// The operator of fused nodes and, if asked, all others, of which each takes 11 KiB in each session. Sessions keep pointers to their
// domain, so there is one of each kind for the whole process, which is never freed.
struct Domain {
    explicit Domain(bool others) : failed(make(others)) {}

    OrtCustomOpDomain* domain = nullptr;
    std::vector<std::unique_ptr<Described>> operators;
    bool failed;

  private:
    bool make(bool others) {
        if (taken(ort->CreateCustomOpDomain("edgedec", &domain))) return true;
        std::vector<OperatorKind> kinds;
        if (others) kinds = contained_kinds();
        kinds.push_back(fused_node());
        for (const OperatorKind& kind : kinds) {
            operators.push_back(std::make_unique<Described>(kind));
            if (taken(ort->CustomOpDomain_Add(domain, operators.back().get()))) return true;
        }
        return false;
    }
};

// Adds the domain "edgedec" to the options of a session. `ort` must be set.
Status add_operators(OrtSessionOptions* options, bool others) {
    static const auto* const all = new Domain(true);
    static const auto* const fused = new Domain(false);
    const Domain& chosen = others ? *all : *fused;
    if (chosen.failed) return {Status::kFailed, "edgedec's operators could not be made"};
    return taken(ort->AddCustomOpDomain(options, chosen.domain));
}

constexpr size_t kMostBindings = 96;  // sizes of runs that stay bound, 5 KiB each

// A number of rows and of rows of results, with its inputs and outputs.
struct Binding {
    int64_t rows, results;
    Handle<OrtIoBinding> values;
};

class OrtModelSession final : public Session {
  public:
    OrtModelSession()
        : env_(nullptr, ort->ReleaseEnv), memory_(nullptr, ort->ReleaseMemoryInfo), session_(nullptr, ort->ReleaseSession) {}

    Status open(const void* model, int64_t bytes, const SessionOptions& request) {
        // The process has one environment, that of the Python package.
        EDGEDEC_TRY(own(env_, [&](OrtEnv** env) { return ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "edgedec", env); }));
        EDGEDEC_TRY(own(memory_, [&](OrtMemoryInfo** info) {
            return ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, info);
        }));
        Handle<OrtSessionOptions> options(nullptr, ort->ReleaseSessionOptions);
        EDGEDEC_TRY(own(options, ort->CreateSessionOptions));
        EDGEDEC_TRY(taken(ort->SetSessionLogSeverityLevel(options.get(), ORT_LOGGING_LEVEL_ERROR)));
        EDGEDEC_TRY(taken(ort->SetIntraOpNumThreads(options.get(), static_cast<int>(request.threads))));
        // Activations are in an arena and not on the C heap, where passes of different widths fragmented the memory between
        // long-lived small blocks (60 MiB after 40 MiB of activations). Weights are not in the arena.
        EDGEDEC_TRY(taken(ort->EnableCpuMemArena(options.get())));
        // The graph is made of the project's operators, which ONNX Runtime's other optimizations do not know.
        EDGEDEC_TRY(taken(ort->SetSessionGraphOptimizationLevel(options.get(), ORT_ENABLE_BASIC)));
        EDGEDEC_TRY(taken(ort->DisableMemPattern(options.get())));  // it would keep a block for each width of a pass
        EDGEDEC_TRY(taken(ort->AddSessionConfigEntry(options.get(), "session.use_device_allocator_for_initializers", "1")));
        EDGEDEC_TRY(taken(ort->AddSessionConfigEntry(
            options.get(), "session.model_external_initializers_file_folder_path", request.folder)));
        if (request.profile) EDGEDEC_TRY(taken(ort->EnableProfiling(options.get(), request.profile)));
        EDGEDEC_TRY(add_operators(options.get(), !request.fused));
        for (int64_t at = 0; at < request.initializer_count; ++at) {
            initializers_.emplace_back(nullptr, ort->ReleaseValue);
            EDGEDEC_TRY(tensor(request.initializers[at], 0, 0, initializers_.back()));
            EDGEDEC_TRY(taken(ort->AddInitializer(options.get(), request.initializers[at].name, initializers_.back().get())));
        }
        const Opening opening(request);
        EDGEDEC_TRY(own(session_, [&](OrtSession** session) {
            return ort->CreateSessionFromArray(env_.get(), model, static_cast<size_t>(bytes), options.get(), session);
        }));
        return read_inputs();
    }

    Status run(int64_t rows, int64_t results) override {
        const OrtIoBinding* values = nullptr;
        EDGEDEC_TRY(bound(rows, results, &values));
        return taken(ort->RunWithBinding(session_.get(), nullptr, values));
    }

    Status end_profile(std::string& path) override {
        OrtAllocator* allocator = nullptr;
        EDGEDEC_TRY(taken(ort->GetAllocatorWithDefaultOptions(&allocator)));
        char* name = nullptr;
        EDGEDEC_TRY(taken(ort->SessionEndProfiling(session_.get(), allocator, &name)));
        path = name;
        return taken(ort->AllocatorFree(allocator, name));
    }

  private:
    void unbind() override { bindings_.clear(); }

    Status read_inputs() {
        OrtAllocator* allocator = nullptr;
        size_t count = 0;
        EDGEDEC_TRY(taken(ort->GetAllocatorWithDefaultOptions(&allocator)));
        EDGEDEC_TRY(taken(ort->SessionGetInputCount(session_.get(), &count)));
        for (size_t at = 0; at < count; ++at) {
            char* name = nullptr;
            EDGEDEC_TRY(taken(ort->SessionGetInputName(session_.get(), at, allocator, &name)));
            input_names_.emplace_back(name);
            EDGEDEC_TRY(taken(ort->AllocatorFree(allocator, name)));
        }
        return {};
    }

    Status tensor(const SessionTensor& source, int64_t n, int64_t r, Handle<OrtValue>& value) const {
        std::array<int64_t, 4> dims{};
        const auto rank = static_cast<size_t>(source.rank);
        for (size_t at = 0; at < rank; ++at) dims[at] = size_of_dim(source.dims[at], n, r);
        return own(value, [&](OrtValue** made) {
            return ort->CreateTensorWithDataAsOrtValue(memory_.get(), source.data, static_cast<size_t>(source.bytes), dims.data(),
                                                       rank, static_cast<ONNXTensorElementDataType>(source.type), made);
        });
    }

    Status bound(int64_t rows, int64_t results, const OrtIoBinding** values) {
        for (const Binding& binding : bindings_)
            if (binding.rows == rows && binding.results == results) {
                *values = binding.values.get();
                return {};
            }
        Binding made{rows, results, {nullptr, ort->ReleaseIoBinding}};
        EDGEDEC_TRY(own(made.values, [&](OrtIoBinding** binding) { return ort->CreateIoBinding(session_.get(), binding); }));
        for (const SessionTensor& bound : inputs_) {
            Handle<OrtValue> value(nullptr, ort->ReleaseValue);
            EDGEDEC_TRY(tensor(bound, rows, results, value));
            EDGEDEC_TRY(taken(ort->BindInput(made.values.get(), bound.name, value.get())));
        }
        for (const SessionTensor& bound : outputs_) {
            Handle<OrtValue> value(nullptr, ort->ReleaseValue);
            EDGEDEC_TRY(tensor(bound, rows, results, value));
            EDGEDEC_TRY(taken(ort->BindOutput(made.values.get(), bound.name, value.get())));
        }
        if (bindings_.size() == kMostBindings) bindings_.erase(bindings_.begin());
        bindings_.push_back(std::move(made));
        *values = bindings_.back().values.get();
        return {};
    }

    Handle<OrtEnv> env_;
    Handle<OrtMemoryInfo> memory_;
    std::vector<Handle<OrtValue>> initializers_;
    Handle<OrtSession> session_;  // ends before its initializers
    std::vector<Binding> bindings_;
};

}  // namespace

std::unique_ptr<Session> open_with_onnxruntime(const void* model, int64_t bytes, const SessionOptions& options, Status& status) {
    if (!ort) {
        status = {Status::kFailed, "the operators were not registered"};
        return nullptr;
    }
    auto session = std::make_unique<OrtModelSession>();
    status = session->open(model, bytes, options);
    return session;
}

}  // namespace edgedec

// The function that SessionOptions.register_custom_ops_library calls.
extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    const OrtApi* api = base->GetApi(ORT_API_VERSION);
    if (!api)
        return base->GetApi(1)->CreateStatus(
            ORT_NOT_IMPLEMENTED, (std::string("edgedec's kernels need ONNX Runtime 1.17 or later, this is ") +
                                  base->GetVersionString()).c_str());
    const char* message = nullptr;
    if (!edgedec::chosen_path(&message)) return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
    edgedec::ort = api;
    return edgedec::given([&] { return edgedec::add_operators(options, true); });
}
