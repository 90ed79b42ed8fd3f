// The drafter `ngram` (runtime/drafters/ngram.py).
#include "drafts.hpp"

namespace edgedec {
namespace {

constexpr int64_t kLeast = 2, kMost = 16, kTries = 64;

class Ngram final : public TextDraft {
  public:
    Ngram(int64_t vocab, int64_t positions, int64_t depth) : TextDraft(vocab, depth), places_(positions, depth) {}

    void after(Text text, const Tokens& path, Guesses& guesses) override {
        places_.follow(text, path);
        const Places::Match match = places_.longest(kLeast, kMost, kTries);
        if (match.length) certain(places_.id(match.place + 1), guesses);
    }

    void observe(const Tokens&, int32_t, const std::vector<TopTokens>&) override {}

  private:
    Places places_;
};

}  // namespace

std::unique_ptr<Draft> open_ngram(int64_t vocab, int64_t positions, int64_t depth) {
    return std::make_unique<Ngram>(vocab, positions, depth);
}

}  // namespace edgedec
