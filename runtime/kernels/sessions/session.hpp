// Sessions: models that run on memory that the caller has bound. onnxruntime.cpp has those that ONNX Runtime runs, and
// direct_session.cpp those that are one fused node, which needs no other program.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "operators/operator.hpp"

namespace edgedec {

// The memory of a tensor, as `SessionTensor` of session.py lays it out. A dimension below 0 is one of the constants below.
struct SessionTensor {
    const char* name;
    void* data;
    int64_t bytes, type, rank;  // `type` is one of ElementType
    int64_t dims[4];
};

// The options of a session, as `SessionOptions` of session.py lays them out.
struct SessionOptions {
    const char* folder;   // folder of the weights that are stored in files
    const char* profile;  // beginning of the name of the profiler's file; null: no profile
    int64_t threads;      // 0: ONNX Runtime chooses it
    const SessionTensor* initializers;
    int64_t initializer_count;
    int64_t fused;  // 1: the model's nodes of the domain "edgedec" are all fused nodes, so the session needs no other operator
};

// The dimensions that differ from run to run: rows, rows of results, and 64-bit words of a row of the mask.
constexpr int64_t kRows = -1, kResults = -2, kWords = -3;

inline int64_t size_of_dim(int64_t size, int64_t rows, int64_t results) {
    return size == kRows ? rows : size == kResults ? results : size == kWords ? (rows + 63) / 64 : size;
}

class Session {
  public:
    virtual ~Session() = default;

    // Sets the memory of the inputs and outputs. Inputs that the model does not have are left out.
    void bind(const SessionTensor* inputs, int64_t input_count, const SessionTensor* outputs, int64_t output_count);
    virtual Status run(int64_t rows, int64_t results) = 0;
    // Sets `path` to the profiler's file, which is complete then.
    virtual Status end_profile(std::string& path) = 0;

  protected:
    // Forgets what was derived from the memory that was bound before.
    virtual void unbind() {}

    std::vector<std::string> input_names_;
    std::vector<SessionTensor> inputs_, outputs_;

  private:
    std::deque<std::string> names_;
};

// Lets `received_array` find the arrays of a session while this object exists. Kernels are made on the thread that opens it.
class Opening {
  public:
    explicit Opening(const SessionOptions& options);
    ~Opening();
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
    const SessionTensor* find(std::string_view name) const;

  private:
    std::unordered_map<std::string_view, const SessionTensor*> arrays_;
};

// Return the session, which cannot be used if `status` is set.
std::unique_ptr<Session> open_with_onnxruntime(const void* model, int64_t bytes, const SessionOptions& options, Status& status);
// `record` is that of a fused node with the names of its inputs and outputs, as edgedec/onnx/fusion.py writes it.
std::unique_ptr<Session> open_directly(std::string_view record, const SessionOptions& options, Status& status);

}  // namespace edgedec
