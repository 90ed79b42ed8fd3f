// The answer of a call that can be refused: nothing, or a failure with a message.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>

// Returns from the function with the failure of a call, if it has one.
#define EDGEDEC_TRY(...)                                           \
    do {                                                           \
        if (edgedec::Status status = (__VA_ARGS__)) return status; \
    } while (false)

namespace edgedec {

struct Failure {
    int32_t code;
    std::string message;
};

// The failure that is told if there is no memory to tell another one. It is made when the library is loaded.
inline const Failure kNoMemory{1, "edgedec's kernels: not enough memory"};

// It is true if there is a failure, which it owns.
class [[nodiscard]] Status {
  public:
    static constexpr int32_t kFailed = 1, kInvalid = 2;  // codes, of which ONNX Runtime has the same

    Status() = default;
    Status(int32_t code, std::string message) : failure_(new Failure{code, std::move(message)}) {}
    static Status no_memory() {
        Status status;
        status.failure_ = &kNoMemory;
        return status;
    }
    Status(Status&& other) noexcept : failure_(std::exchange(other.failure_, nullptr)) {}
    Status& operator=(Status&& other) noexcept {
        std::swap(failure_, other.failure_);
        return *this;
    }
    ~Status() {
        if (failure_ && failure_ != &kNoMemory) delete failure_;
    }

    explicit operator bool() const { return failure_ != nullptr; }
    const Failure& failure() const { return *failure_; }

  private:
    const Failure* failure_ = nullptr;
};

// Runs `body` and turns exceptions into a failure, because no exception may pass into another program.
template <class Body>
Status guarded(const Body& body) {
    try {
        try {
            return body();
        } catch (const std::bad_alloc&) {
            return Status::no_memory();
        } catch (const std::exception& error) {
            return {Status::kFailed, error.what()};
        }
    } catch (const std::bad_alloc&) {
        return Status::no_memory();
    }
}

}  // namespace edgedec
