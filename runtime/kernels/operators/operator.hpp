// The parts of ONNX Runtime's C interface that the operators of the domain "edgedec" need.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "onnxruntime/onnxruntime_c_api.h"
#include "operators/team.hpp"

#define EDGEDEC_TRY(call)                              \
    do {                                               \
        if (OrtStatus* status = (call)) return status; \
    } while (false)

namespace edgedec {

struct Shape {
    ONNXTensorElementDataType type;
    std::vector<int64_t> dims;
    int64_t count = 1;
};

OrtStatus* shape_of(const OrtApi& api, const OrtValue* value, Shape& shape);

// The shape and the memory of a tensor.
struct Value {
    Shape shape{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {}, 0};
    void* data = nullptr;
};

// Returns the lines of a text, of which the last one may lack its newline.
std::vector<std::string> lines_of(const std::string& text);

// Sets `value` to an array that the session which this thread is opening has received. Returns false if there is none of the name.
bool received_array(std::string_view name, Value& value);

// The attributes of the nodes that a fused node contains, as edgedec/onnx/fusion.py writes them. The bytes must outlive it.
class Records {
  public:
    enum Type : uint32_t { kIntegers = 1, kFloats = 2, kText = 3 };
    struct Field {
        std::string_view name;
        uint32_t type;
        uint32_t count;    // elements, or bytes of a text
        const char* data;  // not aligned
    };

    explicit Records(std::string_view bytes) : rest_(bytes) {}
    bool empty() const { return rest_.empty(); }
    // Reads the next node. Returns false if the bytes are not those of a node.
    bool next(std::string_view& kind, std::vector<Field>& fields);

  private:
    bool number(uint32_t& value);
    bool text(std::string_view& value);
    bool take(size_t bytes, std::string_view& taken);

    std::string_view rest_;
};

// The parts that the kernel of a node is made from: a node of the session, or one of the nodes that a fused node contains,
// whose inputs are among those of the fused node.
struct NodeInfo {
    const OrtApi& api;
    const OrtKernelInfo* info;
    const std::vector<Records::Field>* fields = nullptr;  // attributes of a contained node; null: those of `info`
    const std::vector<int64_t>* inputs = nullptr;  // with `fields`: for each input its number among `values`
    const std::vector<Value>* values = nullptr;    // with `fields`: the constants of the fused node; others have no data
    size_t contained_outputs = 0;                  // with `fields`: the number of outputs

    OrtStatus* integer(const char* name, int64_t* value) const;
    OrtStatus* number(const char* name, float* value) const;
    OrtStatus* text(const char* name, std::string& value) const;
    OrtStatus* list(const char* name, std::vector<int64_t>& values) const;
    OrtStatus* list(const char* name, std::vector<float>& values) const;
    OrtStatus* counts(size_t* inputs, size_t* outputs) const;
    // Sets `value` to an input that is a constant; its `data` is null if it is none.
    OrtStatus* initializer(size_t index, Value& value) const;

  private:
    // Sets `*field` to the attribute of a contained node.
    OrtStatus* find(const char* name, Records::Type type, const Records::Field** field) const;
};

// The inputs, outputs and threads of a node while it runs.
class NodeContext {
  public:
    virtual OrtStatus* input(size_t index, Shape& shape, void** data) = 0;
    virtual OrtStatus* output(size_t index, const std::vector<int64_t>& dims, float** data) = 0;
    // Calls work(user, index) for each index below `count`, on the session's threads.
    virtual OrtStatus* parallel(void (*work)(void*, size_t), size_t count, void* user) = 0;
    // Says whether the node waits for something slow, so that threads that wait for work may sleep.
    virtual void rest(bool) {}

  protected:
    ~NodeContext() = default;
};

// A node of the session.
class SessionContext final : public NodeContext {
  public:
    SessionContext(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}
    OrtStatus* input(size_t index, Shape& shape, void** data) override;
    OrtStatus* output(size_t index, const std::vector<int64_t>& dims, float** data) override;
    OrtStatus* parallel(void (*work)(void*, size_t), size_t count, void* user) override {
        return api_.KernelContext_ParallelFor(context_, work, count, 0, user);
    }

  private:
    const OrtApi& api_;
    OrtKernelContext* context_;
};

// The base of kernels. Its error messages name the kind of operator and the node.
class Operator {
  public:
    Operator(const OrtApi& api, const char* kind) : api_(api), kind_(kind) {}
    virtual ~Operator() = default;
    virtual OrtStatus* create(const NodeInfo& info) = 0;
    virtual OrtStatus* compute(NodeContext& context) const = 0;
    // Returns this operator if threads that wait for it can prefetch its weights, or null.
    virtual const Upcoming* upcoming() const { return nullptr; }

  protected:
    OrtStatus* named(const NodeInfo& info);  // call it first: messages need the node's name
    OrtStatus* refuse(const std::string& why) const {
        return api_.CreateStatus(ORT_INVALID_ARGUMENT, ("edgedec " + std::string(kind_) + " " + node_ + ": " + why).c_str());
    }
    // Returns an initializer's address, which is valid as long as the session.
    OrtStatus* constant(const NodeInfo& info, size_t index, size_t given, ONNXTensorElementDataType type, int64_t count,
                        const void** data) const;

    const OrtApi& api_;

  private:
    const char* kind_;
    std::string node_;
};

// Runs `body` and turns exceptions into a status, because no exception may pass into ONNX Runtime.
template <class Body>
OrtStatus* guarded(const OrtApi& api, Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return api.CreateStatus(ORT_FAIL, "edgedec's kernels: not enough memory");
    } catch (const std::exception& error) {
        return api.CreateStatus(ORT_FAIL, error.what());
    }
}

// The interface of the ONNX Runtime that loaded the library, for KernelComputeV2, which does not get it as an argument.
extern const OrtApi* ort;

// Returns the description of an operator with the kernel class Kernel, a subclass of Operator with the constructor Kernel(api).
// Kernel checks the inputs and outputs; here they are variadic lists of any type.
template <class Kernel>
OrtCustomOp describe() {
    OrtCustomOp op{};
    op.version = ORT_API_VERSION;
    op.GetName = [](const OrtCustomOp*) { return Kernel::kKind; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
    op.GetInputType = [](const OrtCustomOp*, size_t index) {
        return index ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    op.GetOutputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
        return index ? INPUT_OUTPUT_VARIADIC : INPUT_OUTPUT_REQUIRED;
    };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
    op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                           void** kernel) -> OrtStatusPtr {
        return guarded(*api, [&]() -> OrtStatus* {
            Kernel* made = new Kernel(*api);
            if (OrtStatus* status = made->create(NodeInfo{*api, info})) {
                delete made;
                return status;
            }
            *kernel = made;
            return nullptr;
        });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
        SessionContext session(*ort, context);
        return guarded(*ort, [&] { return static_cast<const Kernel*>(kernel)->compute(session); });
    };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
    return op;
}

// A kind of operator: its description, and its kernel for a node that a fused node contains.
struct OperatorKind {
    const char* name;
    const OrtCustomOp* description;
    Operator* (*make)(const OrtApi&);
};

template <class Kernel>
OperatorKind kind_of() {
    static const OrtCustomOp op = describe<Kernel>();
    return {Kernel::kKind, &op, [](const OrtApi& api) -> Operator* { return new Kernel(api); }};
}

// The kinds that a fused node can contain; each is defined in the operator's file.
OperatorKind ternary_matmul();
OperatorKind int8_matmul();
OperatorKind grid_matmul();
OperatorKind tree_attention();
OperatorKind rms_norm();
OperatorKind gated_activation();
OperatorKind hadamard();
OperatorKind addition();
OperatorKind row_selection();
OperatorKind float_matmul();
OperatorKind columns();
OperatorKind multiplication();
OperatorKind soft_cap();
OperatorKind rotation();
OperatorKind layer_norm();
OperatorKind head_difference();
OperatorKind causal_conv();
OperatorKind selective_scan();
OperatorKind channel_scan();
OperatorKind gated_delta_rule();
// Returns the kind of that name; `make` is null if a fused node cannot contain it.
OperatorKind find_kind(std::string_view name);

// The operator of fused nodes, and a kernel of it for a session without ONNX Runtime.
const OrtCustomOp* fused_nodes();
Operator* make_fused_node(const OrtApi& api);

// Adds the domain "edgedec" to the options of a session: the operator of fused nodes and, if asked, all others, of which each takes
// 11 KiB in each session. `ort` must be set.
OrtStatus* add_operators(OrtSessionOptions* options, bool others);

}  // namespace edgedec
