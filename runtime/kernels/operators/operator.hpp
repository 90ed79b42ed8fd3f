// Operators: what one is made from, what it sees while it runs, and the kinds that there are. They know no session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "operators/shape.hpp"
#include "operators/status.hpp"
#include "operators/team.hpp"

namespace edgedec {

// Sets `value` to an array that the session which this thread is opening has received. Returns false if there is none of the name.
bool received_array(std::string_view name, Value& value);

// The parts that the operator of a node is made from.
class NodeInfo {
  public:
    virtual Status name(std::string& value) const = 0;
    virtual Status integer(const char* name, int64_t* value) const = 0;
    virtual Status number(const char* name, float* value) const = 0;
    virtual Status text(const char* name, std::string& value) const = 0;
    virtual Status list(const char* name, std::vector<int64_t>& values) const = 0;
    virtual Status list(const char* name, std::vector<float>& values) const = 0;
    virtual Status counts(size_t* inputs, size_t* outputs) const = 0;
    // Sets `value` to an input that is a constant; its `data` is null if it is none.
    virtual Status initializer(size_t index, Value& value) const = 0;

  protected:
    ~NodeInfo() = default;
};

// The inputs, outputs and threads of a node while it runs.
class NodeContext {
  public:
    virtual Status input(size_t index, Shape& shape, void** data) = 0;
    virtual Status output(size_t index, const std::vector<int64_t>& dims, float** data) = 0;
    // Calls work(user, index) for each index below `count`, on the session's threads.
    virtual Status parallel(void (*work)(void*, size_t), size_t count, void* user) = 0;
    // Says whether the node waits for something slow, so that threads that wait for work may sleep.
    virtual void rest(bool) {}

  protected:
    ~NodeContext() = default;
};

// The base of operators. Its messages name the kind of operator and the node.
class Operator {
  public:
    explicit Operator(const char* kind) : kind_(kind) {}
    virtual ~Operator() = default;
    virtual Status create(const NodeInfo& info) = 0;
    virtual Status compute(NodeContext& context) const = 0;
    // Returns this operator if threads that wait for it can prefetch its weights, or null.
    virtual const Upcoming* upcoming() const { return nullptr; }

  protected:
    Status named(const NodeInfo& info) { return info.name(node_); }  // call it first: messages need the node's name
    Status refuse(const std::string& why) const {
        return {Status::kInvalid, "edgedec " + std::string(kind_) + " " + node_ + ": " + why};
    }
    // Returns an initializer's address, which is valid as long as the session.
    Status constant(const NodeInfo& info, size_t index, size_t given, ElementType type, int64_t count, const void** data) const;

  private:
    const char* kind_;
    std::string node_;
};

// A kind of operator.
struct OperatorKind {
    const char* name;
    std::unique_ptr<Operator> (*make)();
};

template <class Kernel>
OperatorKind kind_of() {
    return {Kernel::kKind, []() -> std::unique_ptr<Operator> { return std::make_unique<Kernel>(); }};
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
const std::vector<OperatorKind>& contained_kinds();
// The kind of fused nodes themselves.
OperatorKind fused_node();

}  // namespace edgedec
