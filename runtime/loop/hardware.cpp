#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>

#include "policies.hpp"

namespace edgedec {
namespace {

constexpr double kMemory = 0.95;    // decay of the sums of predicted acceptance, per round
constexpr size_t kCalls = 9;        // rounds whose duration of a call is remembered
constexpr double kForgive = 0.995;  // decay of the expected duration of a call, per round without a call

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// A best-first growth that stops once further growth cannot pay (`_Search` of hardware.py).
class Search : public BestFirst {
  public:
    Search(Growth& growth, int64_t nodes, int64_t depth, std::vector<double> factors, const double* times, double began,
           const HardwareMemory& memory)
        : BestFirst(growth, nodes, depth, std::move(factors), true),
          times_(times),
          floor_(times, times + nodes + 1),
          call_seconds_(memory.call_seconds()),
          began_(began),
          memory_(memory) {
        for (size_t size = floor_.size() - 2; size > 0; --size) floor_[size] = std::min(floor_[size], floor_[size + 1]);
    }

    // Returns the number of nodes with the best rate; of equal rates, the smallest number.
    int64_t best_size() const {
        const double spent = this->spent();
        double total = 0, best_rate = 0;
        int64_t best = 1, size = 0;
        for (const double value : values_) {
            total += value;
            const double rate = total / (times_[++size] + spent);
            if (rate > best_rate) {
                best = size;
                best_rate = rate;
            }
        }
        return best;
    }

  protected:
    // Returns whether a call for the distribution of a node could raise the rate.
    bool goes_on(double value) override {
        const double spent = this->spent();
        double best = best_rate(spent);
        const double seconds = times_[growth_.size() + 1] + spent;
        if (heap_.size() > 1) {  // compare one call for one node with the best node that needs no call
            double other = 0;
            for (const Entry& entry : heap_)
                if (known(entry)) other = std::max(other, -entry.key);
            best = std::max(best, (total_ + other) / seconds);
        }
        return (total_ + value) / (seconds + call_seconds_) > best || could_pay(value, best, spent);
    }

  private:
    double spent() const { return memory_.now() - began_; }

    // Returns the best rate so far, after the nodes added since the last call are counted.
    double best_rate(double spent) {
        double peak = peak_total_ / (times_[peak_] + spent);
        while (counted_ < growth_.size()) {
            total_ += value(counted_++);
            const double rate = total_ / (times_[counted_] + spent);
            if (rate > peak) {
                peak = rate;
                peak_ = counted_;
                peak_total_ = total_;
            }
        }
        return peak;
    }

    // Returns whether the bound of hardware.py exceeds every rate that needs no further call.
    bool could_pay(double value, double best, double spent) const {
        const int64_t size = growth_.size(), left = nodes_ - size;
        std::vector<double> waiting, mass(static_cast<size_t>(depth_) + 1, 0.0);  // the latter: sums of values by depth
        double unexpanded = 0;
        for (const Entry& entry : heap_) {
            const auto depth = static_cast<size_t>(growth_.depth(entry.node));
            const double own = this->value(entry.node);
            if (known(entry)) {
                waiting.push_back(-entry.key);
                mass[depth + 1] += own * factors_[depth] * growth_.children(entry.node).rest();
            } else {
                mass[depth] += own;
                unexpanded += own;
            }
        }
        std::sort(waiting.begin(), waiting.end(), std::greater<double>());
        double total = total_;
        for (int64_t at = 0; at < std::min(left, static_cast<int64_t>(waiting.size())); ++at) {
            total += waiting[static_cast<size_t>(at)];
            best = std::max(best, total / (times_[size + at + 1] + spent));
        }
        double reach = sum(mass) - unexpanded;  // gain that is possible without a call
        for (int64_t calls = 1; calls <= std::min(left, depth_); ++calls) {
            mass.resize(std::min(mass.size(), factors_.size()));
            for (size_t depth = 0; depth < mass.size(); ++depth) mass[depth] *= factors_[depth];
            mass.insert(mass.begin(), 0.0);
            reach += sum(mass);
            const double cost = spent + static_cast<double>(calls) * call_seconds_;
            for (int64_t nodes = calls; nodes <= left; ++nodes) {
                const double gain = std::min(static_cast<double>(nodes) * value, reach);
                if ((total_ + gain) / (floor_[static_cast<size_t>(size + nodes)] + cost) > best) return true;
                if (gain == reach) break;  // more nodes add nothing
            }
        }
        return false;
    }

    const double* times_;        // seconds of a pass by number of nodes
    std::vector<double> floor_;  // minimum over this and all larger sizes, because measured times need not increase
    const double call_seconds_, began_;
    const HardwareMemory& memory_;
    int64_t peak_ = 1, counted_ = 1;         // the best size so far, and the number of nodes in `total_`
    double peak_total_ = 1.0, total_ = 1.0;  // 1 + E of the best size, and the running sum
};

}  // namespace

double HardwareMemory::now() const {
    if (clock_) return clock_();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> HardwareMemory::factors(const Measured& measured, int64_t depth) {
    if (static_cast<int64_t>(predicted_.size()) < depth) {
        predicted_.resize(static_cast<size_t>(depth), 0.0);
        parent_values_.resize(static_cast<size_t>(depth), 0.0);
    }
    std::vector<double> factors(std::min(predicted_.size(), static_cast<size_t>(measured.depths)));
    for (size_t at = 0; at < factors.size(); ++at) {
        const auto rate = static_cast<double>(measured.accept[static_cast<int64_t>(at) * measured.ranks]);
        factors[at] = predicted_[at] > 0 ? rate * parent_values_[at] / predicted_[at] : rate;
    }
    return factors;
}

double HardwareMemory::call_seconds() const {
    if (calls_.empty()) return 0;
    std::vector<double> ordered(calls_.begin(), calls_.end());
    std::sort(ordered.begin(), ordered.end());
    return decay_ * ((ordered[(ordered.size() - 1) / 2] + ordered[ordered.size() / 2]) / 2);
}

void HardwareMemory::learn(const Growth& growth, const BestFirst& search, double seconds) {
    if (!growth.calls()) {
        decay_ *= kForgive;
        return;
    }
    decay_ = 1.0;
    calls_.push_back(seconds / static_cast<double>(growth.calls()));
    if (calls_.size() > kCalls) calls_.pop_front();
    for (double& value : predicted_) value *= kMemory;
    for (double& value : parent_values_) value *= kMemory;
    std::vector<char> seen(static_cast<size_t>(growth.size()), 0);
    for (int64_t node = 1; node < growth.size(); ++node) {
        const int32_t parent = growth.parent(node);
        char& again = seen[static_cast<size_t>(parent)];
        if (!again) {  // the first guess, whose acceptance was measured by itself
            const auto depth = static_cast<size_t>(growth.depth(parent));
            predicted_[depth] += search.value(parent) * search.prob(node);
            parent_values_[depth] += search.value(parent);
        }
        again = 1;
    }
}

void grow_hardware(Growth& growth, int64_t nodes, int64_t depth, const Measured& measured, const double* costs) {
    HardwareMemory& memory = measured.memory->hardware;
    const double began = memory.now();
    std::vector<double> factors = memory.factors(measured, depth);
    if (!costs || !(costs[1] > 0)) {
        BestFirst search(growth, nodes, depth, std::move(factors), true);
        search.run();
        return memory.learn(growth, search, memory.now() - began);
    }
    Search search(growth, nodes, depth, std::move(factors), costs, began, memory);
    search.run();
    growth.cut(search.best_size());
    memory.learn(growth, search, memory.now() - began);
}

}  // namespace edgedec
