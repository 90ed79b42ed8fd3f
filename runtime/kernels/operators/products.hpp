// The common part of the operators for products of one activation and several matrices. The matrices are in memory, or parts of
// them are read while the pass computes (weight_stream.hpp).
#pragma once

#include <string>
#include <vector>

#include "operators/operator.hpp"
#include "products/staging.hpp"
#include "weights/weight_stream.hpp"

namespace edgedec {

constexpr size_t kMostMatrices = 16;
// Amount of work, in bytes of weights times tokens, below which waking other threads costs more than it saves.
constexpr int64_t kSerialBytes = 128 << 10;
// Number of activations below which one thread quantizes all of them.
constexpr int64_t kSerialElements = 4096;

// Kernel is the subclass. It has kKind and
//     void arrange(Staging&) const                                 puts the codes of all tokens into further forms
//     void run_part(const Staging&, size_t part, float* const* outs) const
//     Weights part_weights(size_t part) const                      returns the weights of a matrix from this part on
//     static int32_t group_size(const Matrix&)
//     static const void* codes(const Matrix&)                      returns the address that the session has for its codes
//     static Matrix rows_of(const Matrix&, int64_t first, int64_t end, const uint8_t* codes)
//     static int64_t threads_parts(const Matrix&)                  returns the parts that threads compute one at a time
//     void run_matrix(const Matrix&, const Staging&, int64_t part, float* out, int64_t stride) const
// and its `create` fills the members.
template <class Kernel, class Matrix>
class Products : public Operator, private Upcoming {
  public:
    // Weights that are not in memory yet cannot be prefetched.
    const Upcoming* upcoming() const final { return pieces_.empty() ? this : nullptr; }
    Status compute(NodeContext& context) const final {
        Shape shape;
        void* data = nullptr;
        EDGEDEC_TRY(context.input(0, shape, &data));
        if (shape.type != ElementType::float32 || shape.dims.empty() || shape.dims.back() != inputs_)
            return refuse("its activations must be float32 with " + std::to_string(inputs_) + " columns");
        const int64_t tokens = shape.count / inputs_;
        const float* x = static_cast<const float*>(data);

        float* outs[kMostMatrices] = {};
        for (size_t i = 0; i < matrices_.size(); ++i) {
            shape.dims.back() = matrices_[i].outputs;
            EDGEDEC_TRY(context.output(i, shape.dims, &outs[i]));
        }
        if (!tokens) return {};

        Staging& staging = thread_staging();
        staging.resize(tokens, inputs_);
        Rows rows{this, &staging, x};
        if (tokens > 1 && shape.count >= kSerialElements)
            EDGEDEC_TRY(context.parallel(quantize, static_cast<size_t>(tokens), &rows));
        else
            for (int64_t t = 0; t < tokens; ++t) quantize(&rows, static_cast<size_t>(t));
        kernel().arrange(staging);
        if (!pieces_.empty()) return run_pieces(context, staging, outs);
        Pass pass{&kernel(), &staging, outs};
        if (bytes_ * tokens < kSerialBytes) {
            for (size_t part = 0; part < parts_; ++part) run(&pass, part);
            return {};
        }
        return context.parallel(run, parts_, &pass);
    }

  protected:
    Products() : Operator(Kernel::kKind) {}

    // Computes one tile of the matrices, which are numbered one matrix after another.
    template <class Tile>
    auto run_tile(size_t part, Tile tile) const {
        auto at = static_cast<int64_t>(part);
        size_t i = 0;
        for (; at >= matrices_[i].tiles(); ++i) at -= matrices_[i].tiles();
        return tile(i, matrices_[i], at);
    }

    // Looks up the streams that have the matrices. `create` calls it last.
    void find_streams() {
        for (size_t i = 0; i < matrices_.size(); ++i) {
            WeightStream* const stream = stream_of(Kernel::codes(matrices_[i]));
            if (stream)
                add_pieces(*stream, i);
            else
                pieces_.push_back({nullptr, 0, i, 0, matrices_[i].outputs});
        }
        for (const Piece& piece : pieces_)
            if (piece.stream) return;
        pieces_.clear();  // all matrices are in memory
    }

    const Path* path_ = nullptr;
    int64_t inputs_ = 0, bytes_ = 0;
    size_t parts_ = 0;  // a thread gets neighbouring parts, which it reads sequentially
    std::vector<Matrix> matrices_;

  private:
    struct Rows {
        const Products* products;
        Staging* staging;
        const float* x;
    };
    struct Pass {
        const Kernel* kernel;
        const Staging* staging;
        float* const* outs;
    };

    // Rows of a matrix that are in memory at the same time: a part of a stream, or a matrix that is in none.
    struct Piece {
        WeightStream* stream;
        size_t part, matrix;
        int64_t first, end;
    };
    struct PiecePass {
        const Kernel* kernel;
        const Staging* staging;
        const Matrix* rows;
        float* out;
        int64_t stride;
    };

    // Adds the parts of a matrix. Pinned ones that lie side by side are one piece.
    void add_pieces(WeightStream& stream, size_t matrix) {
        const std::vector<StreamPart>& parts = stream.parts();
        const StreamPart* last = nullptr;
        for (size_t at = 0; at < parts.size(); ++at) {
            const StreamPart& part = parts[at];
            if (part.matrix != Kernel::codes(matrices_[matrix])) continue;
            if (last && last->codes && part.codes == last->codes + last->codes_bytes)
                pieces_.back().end = part.end;
            else
                pieces_.push_back({&stream, at, matrix, part.first, part.end});
            last = &part;
        }
    }

    Status run_pieces(NodeContext& context, const Staging& staging, float* const* outs) const {
        for (const Piece& piece : pieces_) {
            const Matrix& whole = matrices_[piece.matrix];
            Matrix rows = whole;
            if (piece.stream) {
                const uint8_t* codes = nullptr;
                context.rest(true);
                const std::string why = piece.stream->acquire(piece.part, codes);
                context.rest(false);
                if (!why.empty()) return refuse(why);
                rows = Kernel::rows_of(whole, piece.first, piece.end, codes);
            }
            PiecePass pass{&kernel(), &staging, &rows, outs[piece.matrix] + piece.first, whole.outputs};
            Status status =
                context.parallel(run_piece, static_cast<size_t>(Kernel::threads_parts(rows)), &pass);
            if (piece.stream) piece.stream->release(piece.part);
            if (status) return status;
        }
        return {};
    }
    static void run_piece(void* user, size_t part) {
        const PiecePass& pass = *static_cast<const PiecePass*>(user);
        pass.kernel->run_matrix(*pass.rows, *pass.staging, static_cast<int64_t>(part), pass.out, pass.stride);
    }

    Weights weights(size_t member, size_t members) const final { return kernel().part_weights(parts_ * member / members); }

    // Computes the codes of one token, and their sums.
    static void quantize(void* user, size_t token) {
        const Rows& rows = *static_cast<const Rows*>(user);
        const Products& products = *rows.products;
        const auto t = static_cast<int64_t>(token);
        Staging& staging = *rows.staging;
        products.path_->quantize(rows.x + t * products.inputs_, products.inputs_, staging.codes(t), staging.stride(),
                                 staging.scale(t));
        for (size_t i = 0; i < products.matrices_.size(); ++i)
            if (products.first_of_its_groups(i))
                staging.sum(*products.path_, t, Kernel::group_size(products.matrices_[i]));
    }
    static void run(void* user, size_t part) {
        const Pass& pass = *static_cast<const Pass*>(user);
        pass.kernel->run_part(*pass.staging, part, pass.outs);
    }

    const Kernel& kernel() const { return static_cast<const Kernel&>(*this); }

    std::vector<Piece> pieces_;  // in the order of their use; empty if all matrices are in memory

    bool first_of_its_groups(size_t i) const {
        for (size_t j = 0; j < i; ++j)
            if (Kernel::group_size(matrices_[j]) == Kernel::group_size(matrices_[i])) return false;
        return true;
    }
};

}  // namespace edgedec
