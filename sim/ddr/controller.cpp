#include "controller.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace edgedec::ddr {
namespace {

constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;
constexpr uint64_t kClosed = ~uint64_t{0};

// Bytes at one rate whatever their addresses: in order of arrival.
class Flat final : public Controller {
public:
    Flat(const Parameters& parameters, Done done) : p_(parameters), done_(std::move(done)) {}

    bool room(bool write) const override { return waiting(write) < (write ? p_.write_entries : p_.read_entries); }

    void push(uint64_t, bool write, int port, uint32_t slot) override {
        queue_.push_back({{0, port, slot, now_, 0}, write});
        ++(write ? writes_ : reads_);
    }

    void tick() override {
        ++now_;
        // In bytes times clock_hz: nothing is rounded, so the rate is exact. Time without work is lost.
        const int64_t line = kLineBytes * p_.clock_hz;
        credit_ += p_.flat_bytes_per_s;
        if (queue_.empty()) credit_ = std::min(credit_, line);
        if (queue_.empty() || credit_ < line) return;
        credit_ -= line;
        const auto [access, write] = queue_.front();
        queue_.erase(queue_.begin());
        --(write ? writes_ : reads_);
        ++(write ? counts_.writes : counts_.reads);
        if (!write) done_(access, now_ + p_.read_latency + p_.t_line);
    }

    void archive(Archive& a) override {
        Controller::archive(a);
        a(queue_, reads_, writes_, credit_);
    }

private:
    int64_t waiting(bool write) const { return write ? writes_ : reads_; }

    const Parameters p_;
    Done done_;
    std::vector<std::pair<Access, bool>> queue_;
    int64_t reads_ = 0, writes_ = 0, credit_ = 0;
};

struct Bank {
    uint64_t row = kClosed;
    int64_t column_ok = kLongAgo, precharge_ok = kLongAgo, activate_ok = kLongAgo;
    int32_t group = 0;
    std::vector<Access> waiting[2];  // reads, writes; oldest first
    int32_t hit[2] = {-1, -1};       // the oldest of them whose row is open
    int64_t overtaken[2] = {0, 0};   // times that the oldest of all has been, in a row

    void find_hit(int kind) {
        hit[kind] = -1;
        for (size_t i = 0; i < waiting[kind].size() && hit[kind] < 0; ++i)
            if (waiting[kind][i].row == row) hit[kind] = static_cast<int32_t>(i);
    }
    void open(uint64_t now_open) {
        row = now_open;
        find_hit(0);
        find_hit(1);
    }
};

// Open pages, commands out of order, reads before writes, as parameters.py tells.
class Dram final : public Controller {
public:
    Dram(const Parameters& parameters, Done done)
        : p_(parameters),
          done_(std::move(done)),
          banks_(static_cast<size_t>(p_.bank_groups * p_.banks)),
          groups_(static_cast<size_t>(p_.bank_groups), {kLongAgo, kLongAgo, kLongAgo}),
          next_refresh_(p_.t_refi) {
        for (size_t i = 0; i < banks_.size(); ++i) banks_[i].group = static_cast<int32_t>(i) / static_cast<int32_t>(p_.banks);
    }

    bool room(bool write) const override { return waiting_[write] < (write ? p_.write_entries : p_.read_entries); }

    void push(uint64_t address, bool write, int port, uint32_t slot) override {
        const auto field = [&](int64_t bit, int64_t values) { return address >> bit & static_cast<uint64_t>(values - 1); };
        const uint64_t group = field(p_.bank_group_bit, p_.bank_groups);
        Bank& bank = banks_[group * static_cast<uint64_t>(p_.banks) + field(p_.bank_bit, p_.banks)];
        const uint64_t row = address >> p_.row_bit;
        if (bank.hit[write] < 0 && bank.row == row) bank.hit[write] = static_cast<int32_t>(bank.waiting[write].size());
        bank.waiting[write].push_back({row, port, slot, now_, order_++});
        ++waiting_[write];
    }

    void tick() override {
        ++now_;
        if (now_ < busy_until_ || refresh()) return;
        choose_direction();
        if (!waiting_[writing_]) return;
        column_command();
        row_command();
    }

    void archive(Archive& a) override {
        Controller::archive(a);
        for (Bank& bank : banks_)
            a(bank.row, bank.column_ok, bank.precharge_ok, bank.activate_ok, bank.waiting[0], bank.waiting[1], bank.hit,
              bank.overtaken);
        a(groups_, waiting_, activates_, next_refresh_, busy_until_, last_read_, last_write_, run_, idle_, order_, writing_);
    }

private:
    struct Group {
        int64_t read, write, activate;  // the last of each
    };

    // Closes every bank, then refreshes; true while it does.
    bool refresh() {
        if (now_ < next_refresh_) return false;
        for (const Bank& bank : banks_)
            if (bank.row != kClosed && now_ < bank.precharge_ok) return true;
        int64_t from = now_ + p_.t_rp;
        for (Bank& bank : banks_) {
            if (bank.row == kClosed) from = std::max(from, bank.activate_ok);
            bank.open(kClosed);
        }
        busy_until_ = from + p_.t_rfc;
        for (Bank& bank : banks_) bank.activate_ok = busy_until_;
        next_refresh_ += p_.t_refi;
        ++counts_.refreshes;
        note(Kind::kRefresh, 0, 0);
        return true;
    }

    void choose_direction() {
        idle_ = waiting_[0] ? 0 : idle_ + 1;
        if (!writing_) {
            if (!waiting_[1]) return;
            bool now = idle_ > p_.idle_gap || waiting_[1] >= p_.write_entries;
            for (const Bank& bank : banks_)
                now |= !bank.waiting[1].empty() && now_ - bank.waiting[1].front().since > p_.write_starve_clocks;
            if (!now) return;
            run_ = p_.run_length;
        } else if (!waiting_[0] || (waiting_[1] && run_ > 0)) {
            return;
        }
        writing_ = !writing_;
        ++counts_.turnarounds;
    }

    // Returns true if a bank goes on with its open row: somebody waits for it, and the oldest has not been overtaken too often.
    bool keeps_row(const Bank& bank) const {
        const int32_t hit = bank.hit[writing_];
        return hit == 0 || (hit > 0 && bank.overtaken[writing_] < p_.overtakes);
    }

    // The oldest access whose row is open and whose bank and bus are free.
    void column_command() {
        const int64_t other = writing_ ? last_read_ + p_.read_to_write : last_write_ + p_.write_to_read_s;
        if (now_ < std::max(other, (writing_ ? last_write_ : last_read_) + p_.t_ccd_s)) return;
        Bank* best = nullptr;
        int64_t oldest = std::numeric_limits<int64_t>::max();
        for (Bank& bank : banks_) {
            if (!keeps_row(bank) || now_ < bank.column_ok) continue;
            const Group& group = groups_[static_cast<size_t>(bank.group)];
            if (now_ < (writing_ ? group.write : group.read) + p_.t_ccd_l) continue;
            if (!writing_ && now_ < group.write + p_.write_to_read_l) continue;
            const int64_t order = bank.waiting[writing_][static_cast<size_t>(bank.hit[writing_])].order;
            if (order >= oldest) continue;
            oldest = order;
            best = &bank;
        }
        if (best) serve(*best);
    }

    void serve(Bank& bank) {
        auto& waiting = bank.waiting[writing_];
        const int32_t hit = bank.hit[writing_];
        const Access access = waiting[static_cast<size_t>(hit)];
        waiting.erase(waiting.begin() + hit);
        bank.overtaken[writing_] = hit ? bank.overtaken[writing_] + 1 : 0;
        bank.find_hit(writing_);
        --waiting_[writing_];
        note(writing_ ? Kind::kWrite : Kind::kRead, number(bank), bank.row);
        const int64_t keep = writing_ ? p_.write_to_precharge : p_.read_to_precharge;
        bank.precharge_ok = std::max(bank.precharge_ok, now_ + keep);
        Group& group = groups_[static_cast<size_t>(bank.group)];
        if (writing_) {
            group.write = last_write_ = now_;
            --run_;
            ++counts_.writes;
        } else {
            group.read = last_read_ = now_;
            ++counts_.reads;
            done_(access, now_ + p_.read_latency + p_.t_line);
        }
    }

    // Opens or closes a row for the oldest access that a bank goes on with and that has none.
    void row_command() {
        Bank* best = nullptr;
        int64_t oldest = std::numeric_limits<int64_t>::max();
        for (Bank& bank : banks_) {
            const auto& waiting = bank.waiting[writing_];
            if (waiting.empty() || keeps_row(bank) || waiting.front().order >= oldest) continue;
            if (bank.row == kClosed ? now_ < bank.activate_ok || !may_activate(bank.group) : now_ < bank.precharge_ok)
                continue;
            oldest = waiting.front().order;
            best = &bank;
        }
        if (!best) return;
        if (best->row != kClosed) {
            best->open(kClosed);
            best->activate_ok = std::max(best->activate_ok, now_ + p_.t_rp);
            ++counts_.row_conflicts;
            note(Kind::kPrecharge, number(*best), 0);
            return;
        }
        best->open(best->waiting[writing_].front().row);
        best->column_ok = now_ + p_.t_rcd;
        best->precharge_ok = now_ + p_.t_ras;
        best->activate_ok = now_ + p_.t_rc;
        groups_[static_cast<size_t>(best->group)].activate = now_;
        std::rotate(activates_, activates_ + 1, activates_ + 4);
        activates_[3] = now_;
        ++counts_.activates;
        note(Kind::kActivate, number(*best), best->row);
    }

    int64_t number(const Bank& bank) const { return &bank - banks_.data(); }

    bool may_activate(int32_t group) const {
        return now_ >= activates_[3] + p_.t_rrd_s && now_ >= activates_[0] + p_.t_faw &&
               now_ >= groups_[static_cast<size_t>(group)].activate + p_.t_rrd_l;
    }

    const Parameters p_;
    Done done_;
    std::vector<Bank> banks_;
    std::vector<Group> groups_;
    int64_t waiting_[2] = {0, 0};
    int64_t activates_[4] = {kLongAgo, kLongAgo, kLongAgo, kLongAgo};
    int64_t next_refresh_, busy_until_ = 0, last_read_ = kLongAgo, last_write_ = kLongAgo;
    int64_t run_ = 0, idle_ = 0, order_ = 0;
    bool writing_ = false;
};

}  // namespace

std::unique_ptr<Controller> Controller::make(const Parameters& parameters, Done done) {
    if (parameters.flat_bytes_per_s) return std::make_unique<Flat>(parameters, std::move(done));
    return std::make_unique<Dram>(parameters, std::move(done));
}

}  // namespace edgedec::ddr
