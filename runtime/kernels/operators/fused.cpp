// The operator edgedec::Fused, which runs other operators of this domain one after another (edgedec/onnx/fusion.py
// makes it). It calls the same kernels as the nodes that it contains, so its results have the same bits; what it saves is a
// session's time between nodes and in handing work to threads.
//
// Values have numbers: the inputs of the node, then its outputs, then slots, which are buffers of its own, then constants that the
// session received by their names. Attributes: slots (their number), rows (the most of a pass, for which slots get their memory at
// once), threads, constants (their names, one a line), and nodes: the records of the nodes that it contains, with their operators'
// attributes, and name, inputs and outputs (numbers of values).
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operators/operator.hpp"
#include "operators/records.hpp"
#include "operators/team.hpp"

namespace edgedec {
namespace {

constexpr size_t kMostNodes = 1 << 16, kMostSlots = 1 << 12, kMostRows = 1 << 16;

// Memory for one value at a time. Pages that no value has reached take no memory.
struct Slot {
    std::unique_ptr<float[]> memory;
    size_t size = 0;

    // Returns memory for `count` floats. If there is too little, it is replaced by memory for `room` floats.
    float* reach(size_t count, size_t room) {
        if (size < count) {
            memory.reset(), size = 0;  // before the larger memory is asked for
            memory.reset(new float[std::max(count, room)]), size = std::max(count, room);
        }
        return memory.get();
    }
};

// The memory of the slots, kept from pass to pass to avoid allocations. All fused nodes have the same, because they run one
// after another, and nothing in a slot is read after its node has ended.
using Slots = std::vector<Slot>;

struct Node {
    std::unique_ptr<Operator> kernel;
    std::vector<int64_t> inputs, outputs;
    const Upcoming* next = nullptr;  // this node or the first one after it that has weights
};

class Kernel final : public Operator {
  public:
    static constexpr const char* kKind = "Fused";
    Kernel() : Operator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        int64_t slots = 0, rows = 0, threads = 0;
        std::string nodes, names;
        EDGEDEC_TRY(info.integer("slots", &slots));
        EDGEDEC_TRY(info.integer("rows", &rows));
        EDGEDEC_TRY(info.integer("threads", &threads));
        EDGEDEC_TRY(info.text("nodes", nodes));
        EDGEDEC_TRY(info.text("constants", names));
        EDGEDEC_TRY(info.counts(&inputs_, &outputs_));
        if (slots < 0 || slots > static_cast<int64_t>(kMostSlots)) return refuse("slots must be 0 to 4096");
        if (rows < 0 || rows > static_cast<int64_t>(kMostRows)) return refuse("rows must be 0 to 65536");
        if (threads < 1) return refuse("threads must be at least 1");
        rows_ = static_cast<size_t>(rows);
        threads_ = threads < static_cast<int64_t>(Team::kMost) ? static_cast<size_t>(threads) : Team::kMost;
        values_ = inputs_ + outputs_ + static_cast<size_t>(slots);

        constants_.resize(values_);
        for (size_t i = 0; i < inputs_; ++i) EDGEDEC_TRY(info.initializer(i, constants_[i]));
        for (const std::string& name : lines_of(names)) {
            constants_.emplace_back();
            if (!received_array(name, constants_.back())) return refuse("the session has not received the constant " + name);
        }
        Records records(nodes);
        for (std::string_view kind; !records.empty();) {
            std::vector<Records::Field> fields;
            if (!records.next(kind, fields)) return refuse("its nodes cannot be read");
            EDGEDEC_TRY(add(kind, fields));
        }
        const Upcoming* next = nullptr;
        for (size_t i = nodes_.size(); i--; nodes_[i].next = next)
            if (const Upcoming* own = nodes_[i].kernel->upcoming()) next = own;
        return nodes_.empty() ? refuse("needs at least one node") : Status();
    }

    Status compute(NodeContext& context) const override {
        static thread_local std::vector<Value> values;
        static thread_local Slots slots;
        if (values.size() < values_) values.resize(values_);
        if (slots.size() < values_ - inputs_ - outputs_) slots.resize(values_ - inputs_ - outputs_);
        for (size_t i = 0; i < inputs_; ++i)
            if (!constants_[i].data) EDGEDEC_TRY(context.input(i, values[i].shape, &values[i].data));
        Pass pass{*this, context, values, slots, Team(threads_), {false}, {}};
        if (threads_ == 1)
            lead(pass);
        else
            EDGEDEC_TRY(context.parallel(take_part, threads_, &pass));
        return std::move(pass.status);
    }

  private:
    struct Pass {
        const Kernel& kernel;
        NodeContext& session;
        std::vector<Value>& values;
        Slots& slots;
        Team team;
        std::atomic<bool> led;
        Status status;
    };

    // The pass as a contained node sees it.
    class Contained final : public NodeContext {
      public:
        Contained(Pass& pass, const Node& node) : pass_(pass), node_(node) {}
        Status input(size_t index, Shape& shape, void** data) override {
            const Kernel& kernel = pass_.kernel;
            if (index >= node_.inputs.size()) return kernel.refuse("a node that it contains has too few inputs");
            const auto number = static_cast<size_t>(node_.inputs[index]);
            const Value& constant = kernel.constants_[number];
            const Value& value = constant.data ? constant : pass_.values[number];
            shape = value.shape;
            *data = value.data;
            return {};
        }
        Status output(size_t index, const std::vector<int64_t>& dims, float** data) override {
            const Kernel& kernel = pass_.kernel;
            if (index >= node_.outputs.size()) return kernel.refuse("a node that it contains has too few outputs");
            const auto number = static_cast<size_t>(node_.outputs[index]);
            Value& value = pass_.values[number];
            value.shape.dims = dims;
            value.shape.type = ElementType::float32;
            value.shape.counted();
            if (number < kernel.inputs_ + kernel.outputs_) {
                EDGEDEC_TRY(pass_.session.output(number - kernel.inputs_, dims, data));
            } else {
                const auto count = static_cast<size_t>(value.shape.count);
                const size_t width = dims.empty() ? 1 : static_cast<size_t>(dims.back());
                // A slot that grew with the rows of each pass would leave holes in the heap.
                *data = pass_.slots[number - kernel.inputs_ - kernel.outputs_].reach(count, kernel.rows_ * width);
            }
            value.data = *data;
            return {};
        }
        Status parallel(void (*work)(void*, size_t), size_t count, void* user) override {
            pass_.team.run(work, count, user);
            return {};
        }
        void rest(bool resting) override { pass_.team.rest(resting); }

      private:
        Pass& pass_;
        const Node& node_;
    };

    // A session may call this several times on one thread, one after another. The first call runs the whole pass.
    static void take_part(void* user, size_t) {
        Pass& pass = *static_cast<Pass*>(user);
        if (pass.led.exchange(true)) return pass.team.help();
        lead(pass);
        pass.team.end();
    }

    static void lead(Pass& pass) {
        pass.status = guarded([&]() -> Status {
            for (const Node& node : pass.kernel.nodes_) {
                pass.team.expect(node.next);
                Contained context(pass, node);
                EDGEDEC_TRY(node.kernel->compute(context));
            }
            return {};
        });
    }

    Status add(std::string_view kind, const std::vector<Records::Field>& fields) {
        const auto found = std::find_if(contained_kinds().begin(), contained_kinds().end(),
                                        [&](const OperatorKind& one) { return kind == one.name; });
        if (found == contained_kinds().end()) return refuse("cannot contain the operator " + std::string(kind));
        if (nodes_.size() == kMostNodes) return refuse("contains too many nodes");
        Node node;
        RecordedNode contained(fields);
        EDGEDEC_TRY(contained.list("inputs", node.inputs));
        EDGEDEC_TRY(contained.list("outputs", node.outputs));
        for (int64_t number : node.inputs)
            if (number < 0 || static_cast<size_t>(number) >= constants_.size()) return refuse("has no value " + std::to_string(number));
        for (int64_t number : node.outputs)
            if (static_cast<size_t>(number) < inputs_ || static_cast<size_t>(number) >= values_)
                return refuse("has no output or slot " + std::to_string(number));
        node.kernel = found->make();
        contained.connect(node.inputs, constants_, node.outputs.size());
        EDGEDEC_TRY(node.kernel->create(contained));
        nodes_.push_back(std::move(node));
        return {};
    }

    size_t inputs_ = 0, outputs_ = 0, values_ = 0, rows_ = 0, threads_ = 1;
    std::vector<Value> constants_;  // by the number of the value; those of other values have no data
    std::vector<Node> nodes_;
};

}  // namespace

OperatorKind fused_node() { return kind_of<Kernel>(); }

}  // namespace edgedec
