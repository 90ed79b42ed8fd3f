// An SDR SDRAM chip, cycle by cycle: what it stores, when it answers, and every rule that its controller has to keep.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace edgedec::sdram {

// Mirrored by edgedec.sim.sdram.model; only int64_t.
struct Parameters {
    int64_t bank_bits, row_bits, column_bits;
    int64_t startup, refresh_interval, rcd, rp, rc, ras, rfc, rrd, wr, mrd, cas;
};
constexpr int kParameters = sizeof(Parameters) / sizeof(int64_t);

struct Pins {  // at a rising edge; words of 16 bits
    uint32_t cke, ras_n, cas_n, we_n, bank, address, mask, data, drives;
};

class Model {
public:
    explicit Model(const Parameters& p)
        : p_(p), words_(size_t{1} << (p.bank_bits + p.row_bits + p.column_bits)), banks_(size_t{1} << p.bank_bits) {}

    // One rising edge. ``answer``: what is on the data bus until the next edge; returns whether the chip drives it.
    bool cycle(const Pins& pins, uint32_t* answer) {
        if (!violation_.empty()) return false;
        check_bus(pins);
        if (pins.cke) {
            command(pins);
        } else if (configured_ || now_ >= p_.startup) {
            violated("CKE", "low after power-up", 0, 0, 0);
        }
        take_write(pins);
        check_refresh();
        const Beat& out = bus_[static_cast<size_t>((now_ + 1) & kRing)];
        *answer = out.data;
        bus_[static_cast<size_t>(now_ & kRing)] = {};
        ++now_;
        return out.driven;
    }

    uint16_t* words() { return words_.data(); }
    size_t size() const { return words_.size(); }
    const std::string& violation() const { return violation_; }
    int64_t now() const { return now_; }
    int64_t reads() const { return reads_; }
    int64_t writes() const { return writes_; }
    int64_t refreshes() const { return refreshes_; }
    int64_t activates() const { return activates_; }
    int64_t busy() const { return busy_; }  // cycles in which a word was on the bus
    bool ready() const { return configured_; }

private:
    static constexpr int64_t kNever = -1'000'000'000, kRing = 15, kRefreshesFirst = 2, kAhead = 9;
    struct Beat {
        bool driven = false;
        uint32_t data = 0;
    };
    struct Bank {
        bool open = false;
        int64_t row = 0, activated = kNever, precharged = kNever, written = kNever;
    };

    void violated(const std::string& rule, const std::string& what, int64_t bank, int64_t since, int64_t least) {
        if (!violation_.empty()) return;
        violation_ = rule + ": " + what + ", bank " + std::to_string(bank) + ", cycle " + std::to_string(now_);
        if (least) violation_ += ": after " + std::to_string(since) + " cycles, at least " + std::to_string(least);
    }

    void at_least(const std::string& rule, const std::string& what, size_t bank, int64_t from, int64_t least) {
        if (now_ - from < least) violated(rule, what, static_cast<int64_t>(bank), now_ - from, least);
    }

    // The controller must not drive while the chip does, nor in the cycle after it.
    void check_bus(const Pins& pins) {
        const bool chip = bus_[static_cast<size_t>(now_ & kRing)].driven;
        if (pins.drives && (chip || chip_drove_)) violated("bus", "both sides drive the data", 0, 0, 0);
        chip_drove_ = chip;
        busy_ += chip;
    }

    void command(const Pins& pins) {
        const unsigned code = pins.ras_n << 2 | pins.cas_n << 1 | pins.we_n;
        if (code == 7) return;
        if (now_ < p_.startup) return violated("startup", "a command", 0, now_, p_.startup);
        at_least("tMRD", "a command after MODE", 0, mode_set_, p_.mrd);
        at_least("tRFC", "a command after REFRESH", 0, refreshed_, p_.rfc);
        switch (code) {
            case 0: return set_mode(pins);
            case 1: return refresh();
            case 2: return precharge(pins);
            case 3: return activate(pins);
            case 4:
            case 5: return column(pins, code == 4);
            default: return violated("command", "BURST STOP is not modelled", pins.bank, 0, 0);
        }
    }

    void all_closed(const std::string& what) {
        for (size_t bank = 0; bank < banks_.size(); ++bank) {
            if (banks_[bank].open || !precharged_)
                violated("open", what + " with an open row", static_cast<int64_t>(bank), 0, 0);
            at_least("tRP", what, bank, banks_[bank].precharged, p_.rp);
        }
    }

    void set_mode(const Pins& pins) {
        all_closed("MODE");
        const unsigned length = pins.address & 7, kind = pins.address >> 3 & 1, cas = pins.address >> 4 & 7;
        if (length > 3 || kind || cas != p_.cas || pins.address >> 7 || pins.bank)
            violated("mode", "no mode of this model: " + std::to_string(pins.address), 0, 0, 0);
        if (refreshes_ < kRefreshesFirst) violated("startup", "MODE before two REFRESH", 0, 0, 0);
        burst_ = 1 << length;
        mode_set_ = now_;
        configured_ = true;
        first_refresh_ = now_, refreshes_since_ = 0;
    }

    void refresh() {
        all_closed("REFRESH");
        for (size_t bank = 0; bank < banks_.size(); ++bank)
            at_least("tRC", "REFRESH after ACTIVATE", bank, banks_[bank].activated, p_.rc);
        refreshed_ = now_;
        ++refreshes_, ++refreshes_since_;
    }

    void precharge(const Pins& pins) {
        const bool all = pins.address >> 10 & 1;
        for (size_t bank = 0; bank < banks_.size(); ++bank) {
            if (!all && bank != pins.bank) continue;
            Bank& b = banks_[bank];
            if (b.open) {
                at_least("tRAS", "PRECHARGE", bank, b.activated, p_.ras);
                at_least("tWR", "PRECHARGE", bank, b.written, p_.wr);
                if (writing_left_ && writing_bank_ == bank)
                    violated("tWR", "PRECHARGE in a WRITE", static_cast<int64_t>(bank), 0, 0);
                // A read that goes on is cut: no data from CAS latency cycles on.
                if (read_bank_ == bank)
                    for (int64_t t = now_ + p_.cas; t < read_end_; ++t) bus_[static_cast<size_t>(t & kRing)] = {};
            }
            b.open = false;
            b.precharged = now_;
        }
        precharged_ = precharged_ || all;
    }

    void activate(const Pins& pins) {
        Bank& b = banks_[pins.bank];
        if (!configured_) violated("startup", "ACTIVATE before MODE", pins.bank, 0, 0);
        if (b.open) violated("open", "ACTIVATE of an open bank", pins.bank, 0, 0);
        at_least("tRP", "ACTIVATE", pins.bank, b.precharged, p_.rp);
        at_least("tRC", "ACTIVATE", pins.bank, b.activated, p_.rc);
        at_least("tRRD", "ACTIVATE", pins.bank, activated_, p_.rrd);
        b.open = true, b.row = pins.address & ((1 << p_.row_bits) - 1), b.activated = activated_ = now_;
        ++activates_;
    }

    void column(const Pins& pins, bool writes) {
        const Bank& b = banks_[pins.bank];
        const std::string what = writes ? "WRITE" : "READ";
        if (!b.open) return violated("closed", what + " of a closed bank", pins.bank, 0, 0);
        if (pins.address >> 10 & 1) return violated("command", "AUTO PRECHARGE is not modelled", pins.bank, 0, 0);
        at_least("tRCD", what, pins.bank, b.activated, p_.rcd);
        if (writing_left_) violated("burst", what + " cuts a WRITE", pins.bank, 0, 0);
        if (now_ + p_.cas < read_end_) violated("burst", what + " cuts a READ", pins.bank, 0, 0);
        const auto column = static_cast<int64_t>(pins.address) & ((1 << p_.column_bits) - 1);
        const int64_t row = (static_cast<int64_t>(pins.bank) << p_.row_bits | b.row) << p_.column_bits;
        if (writes) {
            writing_left_ = burst_, writing_bank_ = pins.bank, writing_row_ = row, writing_column_ = column;
            ++writes_;
            return;
        }
        for (int64_t i = 0; i < burst_; ++i) {
            const int64_t at = (column & ~(burst_ - 1)) | ((column + i) & (burst_ - 1));
            bus_[static_cast<size_t>((now_ + p_.cas + i) & kRing)] = {true, words_[static_cast<size_t>(row | at)]};
        }
        read_bank_ = pins.bank, read_end_ = now_ + p_.cas + burst_;
        ++reads_;
    }

    void take_write(const Pins& pins) {
        if (!writing_left_) return;
        if (!pins.drives) violated("bus", "nobody drives a WRITE's data", static_cast<int64_t>(writing_bank_), 0, 0);
        const int64_t i = burst_ - writing_left_;
        const int64_t at = (writing_column_ & ~(burst_ - 1)) | ((writing_column_ + i) & (burst_ - 1));
        uint16_t& word = words_[static_cast<size_t>(writing_row_ | at)];
        if (!(pins.mask & 1)) word = static_cast<uint16_t>((word & 0xff00) | (pins.data & 0x00ff));
        if (!(pins.mask & 2)) word = static_cast<uint16_t>((word & 0x00ff) | (pins.data & 0xff00));
        banks_[writing_bank_].written = now_;
        --writing_left_;
        ++busy_;
    }

    // On average: never more than one interval late. Nor may a controller run ahead and then rest.
    void check_refresh() {
        if (!configured_) return;
        const int64_t due = (now_ - first_refresh_) / p_.refresh_interval;
        if (due > refreshes_since_ + 1) violated("tREFI", "a REFRESH is more than one interval late", 0, 0, 0);
        if (refreshes_since_ > due + kAhead) first_refresh_ = now_, refreshes_since_ = 0;
    }

    Parameters p_;
    std::vector<uint16_t> words_;
    std::vector<Bank> banks_;
    Beat bus_[kRing + 1];
    std::string violation_;
    bool configured_ = false, precharged_ = false, chip_drove_ = false;
    int64_t now_ = 0, burst_ = 1, mode_set_ = kNever, refreshed_ = kNever, activated_ = kNever;
    int64_t first_refresh_ = 0, refreshes_since_ = 0, read_end_ = 0;
    size_t read_bank_ = 0, writing_bank_ = 0;
    int64_t writing_left_ = 0, writing_row_ = 0, writing_column_ = 0;
    int64_t reads_ = 0, writes_ = 0, refreshes_ = 0, activates_ = 0, busy_ = 0;
};

}  // namespace edgedec::sdram
