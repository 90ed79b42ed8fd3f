// Sessions that are one fused node: all operations of the model are the project's own, so that no other program is needed to run
// them. Threads are those of thread_pool.hpp.
#include <algorithm>
#include <utility>

#include "sessions/session.hpp"
#include "sessions/thread_pool.hpp"

namespace edgedec {
namespace {

struct Failure {
    OrtErrorCode code;
    std::string message;
};

// The failure that is told if there is no memory to tell another one.
Failure& no_memory() {
    static Failure failure{ORT_FAIL, "not enough memory"};
    return failure;
}

OrtStatus* failure(OrtErrorCode code, const char* message) noexcept {
    try {
        return reinterpret_cast<OrtStatus*>(new Failure{code, message});
    } catch (const std::bad_alloc&) {
        return reinterpret_cast<OrtStatus*>(&no_memory());
    }
}

// Returns the bytes of an element, or 0 for a type that no memory of a session has.
int64_t element_bytes(int64_t type) {
    switch (type) {
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return 1;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return 2;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return 4;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return 8;
        default: return 0;
    }
}

class DirectSession final : public Session {
  public:
    DirectSession() : Session(plain_api()) {}

    OrtStatus* open(std::string_view record, const SessionOptions& options) {
        std::string_view kind;
        std::vector<Records::Field> fields;
        Records records(record);
        if (!records.next(kind, fields) || !records.empty() || kind != "Fused") return refuse("the fused node cannot be read");
        NodeInfo info{api_, nullptr, &fields};
        std::string inputs, outputs;
        EDGEDEC_TRY(info.text("input_names", inputs));
        EDGEDEC_TRY(info.text("output_names", outputs));
        input_names_ = lines_of(inputs), output_names_ = lines_of(outputs);
        std::vector<int64_t> numbers(input_names_.size());
        for (size_t at = 0; at < numbers.size(); ++at) numbers[at] = static_cast<int64_t>(at);
        const std::vector<Value> unknown(numbers.size());  // no input is a constant
        info.inputs = &numbers, info.values = &unknown, info.contained_outputs = output_names_.size();
        const Opening opening(options);
        kernel_.reset(make_fused_node(api_));
        return kernel_->create(info);
    }

    OrtStatus* run(int64_t rows, int64_t results) override {
        if (rows < 0 || results < 0) return refuse("the numbers of rows must not be negative");
        EDGEDEC_TRY(match(input_names_, inputs_, bound_inputs_, "input"));
        EDGEDEC_TRY(match(output_names_, outputs_, bound_outputs_, "output"));
        Context context(*this, rows, results);
        return edgedec::guarded(api_, [&] { return kernel_->compute(context); });
    }

    OrtStatus* end_profile(std::string&) override { return refuse("only sessions of ONNX Runtime have a profile"); }

  private:
    using Bound = std::vector<const SessionTensor*>;

    class Context final : public NodeContext {
      public:
        Context(const DirectSession& session, int64_t rows, int64_t results)
            : session_(session), rows_(rows), results_(results) {}

        OrtStatus* input(size_t index, Shape& shape, void** data) override {
            if (index >= session_.bound_inputs_.size()) return session_.refuse("a node has too few inputs");
            const SessionTensor& it = *session_.bound_inputs_[index];
            shape.type = static_cast<ONNXTensorElementDataType>(it.type);
            sizes(it, shape.dims);
            shape.count = 1;
            for (int64_t size : shape.dims) shape.count *= size;
            *data = it.data;
            return session_.fits(it, shape.count);
        }
        OrtStatus* output(size_t index, const std::vector<int64_t>& dims, float** data) override {
            if (index >= session_.bound_outputs_.size()) return session_.refuse("a node has too few outputs");
            const SessionTensor& it = *session_.bound_outputs_[index];
            std::vector<int64_t> expected;
            sizes(it, expected);
            if (dims != expected || it.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
                return session_.refuse("the output " + std::string(it.name) + " has memory of another shape or type");
            int64_t count = 1;
            for (int64_t size : dims) count *= size;
            *data = static_cast<float*>(it.data);
            return session_.fits(it, count);
        }
        OrtStatus* parallel(void (*work)(void*, size_t), size_t count, void* user) override {
            ThreadPool::shared().run(work, count, user);
            return nullptr;
        }

      private:
        void sizes(const SessionTensor& it, std::vector<int64_t>& dims) const {
            dims.resize(static_cast<size_t>(it.rank));
            for (size_t at = 0; at < dims.size(); ++at) dims[at] = size_of_dim(it.dims[at], rows_, results_);
        }

        const DirectSession& session_;
        const int64_t rows_, results_;
    };

    OrtStatus* refuse(const std::string& why) const { return api_.CreateStatus(ORT_INVALID_ARGUMENT, why.c_str()); }

    OrtStatus* fits(const SessionTensor& it, int64_t count) const {
        const int64_t element = element_bytes(it.type), bytes = count * element;
        if (!element) return refuse("the memory of " + std::string(it.name) + " has a type that no session knows");
        if (bytes <= it.bytes) return nullptr;
        return refuse("the memory of " + std::string(it.name) + " has not enough space: expected " + std::to_string(bytes) +
                      ", got " + std::to_string(it.bytes));
    }

    // Sets `bound` to the memory of each name, once after each binding.
    OrtStatus* match(const std::vector<std::string>& names, const std::vector<SessionTensor>& memory, Bound& bound,
                     const char* what) const {
        if (!bound.empty()) return nullptr;
        Bound found;
        for (const std::string& name : names) {
            const auto it = std::find_if(memory.begin(), memory.end(), [&](const SessionTensor& one) { return one.name == name; });
            if (it == memory.end()) return refuse("Missing " + std::string(what) + ": " + name);
            found.push_back(&*it);
        }
        bound.swap(found);
        return nullptr;
    }

    void unbind() override { bound_inputs_.clear(), bound_outputs_.clear(); }

    std::unique_ptr<Operator> kernel_;
    std::vector<std::string> output_names_;
    Bound bound_inputs_, bound_outputs_;  // by the number of the input and output
};

}  // namespace

const OrtApi& plain_api() {
    static const OrtApi api = [] {
        OrtApi it{};
        it.CreateStatus = failure;
        it.GetErrorMessage = [](const OrtStatus* status) noexcept { return reinterpret_cast<const Failure*>(status)->message.c_str(); };
        it.GetErrorCode = [](const OrtStatus* status) noexcept { return reinterpret_cast<const Failure*>(status)->code; };
        it.ReleaseStatus = [](OrtStatus* status) noexcept {
            auto* const made = reinterpret_cast<Failure*>(status);
            if (made != &no_memory()) delete made;
        };
        no_memory();  // made now, while there is memory
        return it;
    }();
    return api;
}

std::unique_ptr<Session> open_directly(std::string_view record, const SessionOptions& options, OrtStatus** status) {
    auto session = std::make_unique<DirectSession>();
    *status = session->open(record, options);
    return session;
}

}  // namespace edgedec
