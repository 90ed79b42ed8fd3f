// The memory controller and its DRAM: queues, choice of the next command, bank timing, refresh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "archive.hpp"
#include "parameters.hpp"

namespace edgedec::ddr {

struct Counts {
    int64_t reads, writes, activates, turnarounds, refreshes, row_conflicts;
};

enum class Kind : int64_t { kRead, kWrite, kActivate, kPrecharge, kRefresh };

// A command that the DRAM was given, for tests.
struct Command {
    int64_t clock;
    Kind kind;
    int64_t bank, row;
};

class Controller {
public:
    // A read's data are in the controller's port at that clock.
    using Done = std::function<void(const Access&, int64_t clock)>;
    static std::unique_ptr<Controller> make(const Parameters& parameters, Done done);

    virtual ~Controller() = default;
    virtual bool room(bool write) const = 0;
    virtual void push(uint64_t address, bool write, int port, uint32_t slot) = 0;
    virtual void tick() = 0;
    virtual void archive(Archive& a) { a(now_, counts_); }
    int64_t now() const { return now_; }
    const Counts& counts() const { return counts_; }
    void record() { recording_ = true; }
    const std::vector<Command>& commands() const { return commands_; }

protected:
    void note(Kind kind, int64_t bank, uint64_t row) {
        if (recording_) commands_.push_back({now_, kind, bank, static_cast<int64_t>(row)});
    }

    int64_t now_ = 0;
    Counts counts_{};
    bool recording_ = false;
    std::vector<Command> commands_;
};

}  // namespace edgedec::ddr
