// The common parts of sessions, and their C functions, by which the compiled loop runs a pass without Python
// (runtime/kernels/sessions/session.py). A function that can fail returns null or -1, with the message in edgedec_session_error().
#include "sessions/session.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#define EDGEDEC_API extern "C" __attribute__((visibility("default")))

namespace edgedec {
namespace {

thread_local std::string last_error;
thread_local const Opening* opening = nullptr;

// Calls a function and returns 0, or -1 after its failure's message was kept.
template <class Function>
int32_t called(const Function& function) {
    const Status status = guarded(function);
    if (!status) return 0;
    last_error = status.failure().message;
    return -1;
}

template <class Open>
Session* opened(const Open& open) {
    std::unique_ptr<Session> session;
    const int32_t failed = called([&] {
        Status status;
        session = open(status);
        return status;
    });
    return failed ? nullptr : session.release();
}

}  // namespace

void Session::bind(const SessionTensor* inputs, int64_t input_count, const SessionTensor* outputs, int64_t output_count) {
    const auto known = [&](const SessionTensor& tensor) {
        return std::find(input_names_.begin(), input_names_.end(), tensor.name) != input_names_.end();
    };
    std::vector<SessionTensor> ins, outs;
    std::copy_if(inputs, inputs + input_count, std::back_inserter(ins), known);
    std::copy_n(outputs, output_count, std::back_inserter(outs));
    std::deque<std::string> names;
    for (auto* list : {&ins, &outs})
        for (SessionTensor& tensor : *list) {
            names.emplace_back(tensor.name);  // the caller's names end with the call
            tensor.name = names.back().c_str();
        }
    unbind();  // from here on, nothing fails
    inputs_.swap(ins), outputs_.swap(outs), names_.swap(names);
}

Opening::Opening(const SessionOptions& options) {
    for (int64_t at = 0; at < options.initializer_count; ++at)
        arrays_.emplace(options.initializers[at].name, &options.initializers[at]);
    opening = this;
}

Opening::~Opening() { opening = nullptr; }

const SessionTensor* Opening::find(std::string_view name) const {
    const auto found = arrays_.find(name);
    return found == arrays_.end() ? nullptr : found->second;
}

bool received_array(std::string_view name, Value& value) {
    const SessionTensor* const tensor = opening ? opening->find(name) : nullptr;
    if (!tensor) return false;
    value.shape.type = static_cast<ElementType>(tensor->type);
    value.shape.dims.assign(tensor->dims, tensor->dims + tensor->rank);
    value.shape.counted();
    value.data = tensor->data;
    return true;
}

}  // namespace edgedec

// Sizes of the structures, which Python compares with its own: kind 0 of a tensor, 1 of the options.
EDGEDEC_API int64_t edgedec_session_argument_size(int64_t kind) {
    return static_cast<int64_t>(kind == 0 ? sizeof(edgedec::SessionTensor) : sizeof(edgedec::SessionOptions));
}

EDGEDEC_API const char* edgedec_session_error() { return edgedec::last_error.c_str(); }

// Opens a session of an ONNX model. The operators must have been registered once (RegisterCustomOps). The memory of the
// initializers must outlive the session.
EDGEDEC_API void* edgedec_session_open(const void* model, int64_t bytes, const edgedec::SessionOptions* options) {
    return edgedec::opened([&](edgedec::Status& status) {
        return edgedec::open_with_onnxruntime(model, bytes, *options, status);
    });
}

// Opens a session of a fused node without ONNX Runtime. The memory of the initializers must outlive the session.
EDGEDEC_API void* edgedec_session_open_directly(const void* record, int64_t bytes, const edgedec::SessionOptions* options) {
    const std::string_view node(static_cast<const char*>(record), static_cast<size_t>(bytes));
    return edgedec::opened([&](edgedec::Status& status) { return edgedec::open_directly(node, *options, status); });
}

EDGEDEC_API void edgedec_session_close(void* session) { delete static_cast<edgedec::Session*>(session); }

// Sets the memory of inputs and outputs for all runs that follow.
EDGEDEC_API int32_t edgedec_session_bind(void* session, const edgedec::SessionTensor* inputs, int64_t input_count,
                                         const edgedec::SessionTensor* outputs, int64_t output_count) {
    edgedec::Session& opened = *static_cast<edgedec::Session*>(session);
    return edgedec::called([&] {
        opened.bind(inputs, input_count, outputs, output_count);
        return edgedec::Status();
    });
}

// Runs a pass over a number of rows.
EDGEDEC_API int32_t edgedec_session_run(void* session, int64_t rows, int64_t results) {
    edgedec::Session& opened = *static_cast<edgedec::Session*>(session);
    return edgedec::called([&] { return opened.run(rows, results); });
}

// Ends the profile and returns the name of its file; null after an error.
EDGEDEC_API const char* edgedec_session_end_profile(void* session) {
    thread_local std::string path;
    edgedec::Session& opened = *static_cast<edgedec::Session*>(session);
    return edgedec::called([&] { return opened.end_profile(path); }) ? nullptr : path.c_str();
}
