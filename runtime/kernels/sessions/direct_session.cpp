// Sessions that are one fused node: all operations of the model are the project's own, so that no other program is needed to run
// them. Threads are those of thread_pool.hpp.
#include <algorithm>
#include <utility>

#include "operators/records.hpp"
#include "sessions/session.hpp"
#include "sessions/thread_pool.hpp"

namespace edgedec {
namespace {

// Returns the bytes of an element, or 0 for a type that no memory of a session has.
int64_t element_bytes(int64_t type) {
    switch (static_cast<ElementType>(type)) {
        case ElementType::uint8:
        case ElementType::int8: return 1;
        case ElementType::float16: return 2;
        case ElementType::float32:
        case ElementType::int32: return 4;
        case ElementType::int64: return 8;
    }
    return 0;
}

class DirectSession final : public Session {
  public:
    Status open(std::string_view record, const SessionOptions& options) {
        std::string_view kind;
        std::vector<Records::Field> fields;
        Records records(record);
        if (!records.next(kind, fields) || !records.empty() || kind != "Fused") return refuse("the fused node cannot be read");
        RecordedNode info(fields);
        std::string inputs, outputs;
        EDGEDEC_TRY(info.text("input_names", inputs));
        EDGEDEC_TRY(info.text("output_names", outputs));
        input_names_ = lines_of(inputs), output_names_ = lines_of(outputs);
        std::vector<int64_t> numbers(input_names_.size());
        for (size_t at = 0; at < numbers.size(); ++at) numbers[at] = static_cast<int64_t>(at);
        const std::vector<Value> unknown(numbers.size());  // no input is a constant
        info.connect(numbers, unknown, output_names_.size());
        const Opening opening(options);
        kernel_ = fused_node().make();
        return kernel_->create(info);
    }

    Status run(int64_t rows, int64_t results) override {
        if (rows < 0 || results < 0) return refuse("the numbers of rows must not be negative");
        EDGEDEC_TRY(match(input_names_, inputs_, bound_inputs_, "input"));
        EDGEDEC_TRY(match(output_names_, outputs_, bound_outputs_, "output"));
        Context context(*this, rows, results);
        return kernel_->compute(context);
    }

    Status end_profile(std::string&) override { return refuse("only sessions of ONNX Runtime have a profile"); }

  private:
    using Bound = std::vector<const SessionTensor*>;

    class Context final : public NodeContext {
      public:
        Context(const DirectSession& session, int64_t rows, int64_t results)
            : session_(session), rows_(rows), results_(results) {}

        Status input(size_t index, Shape& shape, void** data) override {
            if (index >= session_.bound_inputs_.size()) return session_.refuse("a node has too few inputs");
            const SessionTensor& bound = *session_.bound_inputs_[index];
            shape.type = static_cast<ElementType>(bound.type);
            sizes(bound, shape.dims);
            shape.counted();
            *data = bound.data;
            return session_.fits(bound, shape.count);
        }
        Status output(size_t index, const std::vector<int64_t>& dims, float** data) override {
            if (index >= session_.bound_outputs_.size()) return session_.refuse("a node has too few outputs");
            const SessionTensor& bound = *session_.bound_outputs_[index];
            std::vector<int64_t> expected;
            sizes(bound, expected);
            if (dims != expected || bound.type != static_cast<int64_t>(ElementType::float32))
                return session_.refuse("the output " + std::string(bound.name) + " has memory of another shape or type");
            int64_t count = 1;
            for (int64_t size : dims) count *= size;
            *data = static_cast<float*>(bound.data);
            return session_.fits(bound, count);
        }
        Status parallel(void (*work)(void*, size_t), size_t count, void* user) override {
            ThreadPool::shared().run(work, count, user);
            return {};
        }

      private:
        void sizes(const SessionTensor& tensor, std::vector<int64_t>& dims) const {
            dims.resize(static_cast<size_t>(tensor.rank));
            for (size_t at = 0; at < dims.size(); ++at) dims[at] = size_of_dim(tensor.dims[at], rows_, results_);
        }

        const DirectSession& session_;
        const int64_t rows_, results_;
    };

    Status refuse(const std::string& why) const { return {Status::kInvalid, why}; }

    Status fits(const SessionTensor& tensor, int64_t count) const {
        const int64_t element = element_bytes(tensor.type), bytes = count * element;
        if (!element) return refuse("the memory of " + std::string(tensor.name) + " has a type that no session knows");
        if (bytes <= tensor.bytes) return {};
        return refuse("the memory of " + std::string(tensor.name) + " has not enough space: expected " + std::to_string(bytes) +
                      ", got " + std::to_string(tensor.bytes));
    }

    // Sets `bound` to the memory of each name, once after each binding.
    Status match(const std::vector<std::string>& names, const std::vector<SessionTensor>& memory, Bound& bound,
                     const char* what) const {
        if (!bound.empty()) return {};
        Bound found;
        for (const std::string& name : names) {
            const auto match =
                std::find_if(memory.begin(), memory.end(), [&](const SessionTensor& one) { return one.name == name; });
            if (match == memory.end()) return refuse("Missing " + std::string(what) + ": " + name);
            found.push_back(&*match);
        }
        bound.swap(found);
        return {};
    }

    void unbind() override { bound_inputs_.clear(), bound_outputs_.clear(); }

    std::unique_ptr<Operator> kernel_;
    std::vector<std::string> output_names_;
    Bound bound_inputs_, bound_outputs_;  // by the number of the input and output
};

}  // namespace

std::unique_ptr<Session> open_directly(std::string_view record, const SessionOptions& options, Status& status) {
    auto session = std::make_unique<DirectSession>();
    status = session->open(record, options);
    return session;
}

}  // namespace edgedec
