// A netlist of ECP5 cells, simulated: only those cells run whose inputs have changed. The tables of a design are written by
// design.py; what each cell does follows yosys' models where there are any (share/lattice/common_sim.vh, ccu2c_sim.vh), and
// for DP16KD and MULT18X18D the rules that yosys' memory and multiplier mapping rely on (share/lattice/brams_16kd.txt,
// dsp_map_18x18.v).
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace edgedec::netlist {

// The kinds of cells, as cells.py numbers them. A cell is a row of numbers: its kind, the nets of its inputs, those of its
// outputs, constants.
enum Kind : uint32_t { kLut, kCarry, kRead, kMultiplier, kReset, kFlipFlop, kWrite, kPort };

struct Shape {
    uint32_t inputs, outputs, constants;
};
constexpr Shape kShapes[] = {{4, 1, 1}, {5, 2, 1}, {4, 4, 1}, {38, 36, 0}, {1, 1, 1}, {3, 1, 1}, {9, 0, 2}, {56, 36, 4}};

struct Tables {
    uint32_t nets;                    // 0 and 1 are the constants, the last is for outputs that nobody reads
    const uint32_t* cells;
    const uint32_t* combinational;    // places in cells where each begins, in an order in which they can run
    uint32_t combinational_count;
    const uint32_t* clocks;           // for each: its net, whether it is inverted, how many cells it has
    uint32_t clock_count;
    const uint32_t* clocked;          // places in cells where each begins, clock by clock
    const uint32_t* rams;             // contents of the memories of 16 x 4, two words for each
    uint32_t ram_count;
    const uint32_t* blocks;           // for each DP16KD: one plus its place in contents, or 0 if it holds zeros
    uint32_t block_count;
    const uint32_t* contents;         // 512 rows of 36 bits, two words for each
};

class Gates {
public:
    explicit Gates(const Tables& tables)
        : t_(tables), values_(tables.nets), rams_(tables.ram_count), readers_(tables.ram_count), blocks_(tables.block_count) {
        for (uint32_t n = 0; n < t_.combinational_count; ++n) places_.push_back(t_.combinational[n]);
        align();
        settled_words_ = places_.size() / 64;
        const uint32_t* next = t_.clocked;
        for (uint32_t n = 0; n < t_.clock_count; ++n) {
            Clock clock{t_.clocks[3 * n], t_.clocks[3 * n + 1], true, false, places_.size() / 64, 0, {}};
            for (const uint32_t* end = next + t_.clocks[3 * n + 2]; next != end; ++next)
                if (t_.cells[*next] == kPort) {
                    clock.ports.push_back(*next);
                    ports_of(*next).at[constants(*next)[1]] = {*next, n};
                } else {
                    places_.push_back(*next);
                }
            align();
            clock.end = places_.size() / 64;
            clocks_.push_back(clock);
        }
        dirty_.assign(places_.size() / 64, 0);
        connect();
        start();
    }

    // An input. It is seen by all cells at the next step.
    void set(uint32_t net, uint8_t bit) {
        if (values_[net] == bit) return;
        values_[net] = bit;
        for (uint32_t n = fanout_at_[net]; n < fanout_at_[net + 1]; ++n) mark(fanout_[n]);
    }
    uint8_t get(uint32_t net) const { return values_[net]; }

    // Settles what is between the registers; then the registers of all clocks that have risen take what they see, at once.
    void step() {
        settle();
        bool any = false;
        for (Clock& clock : clocks_) {
            const bool level = (values_[clock.net] != 0) != (clock.inverted != 0);
            clock.edge = level && !clock.before;
            clock.before = level;
            any = any || clock.edge;
        }
        if (!any) return;
        for (const Clock& clock : clocks_)
            if (clock.edge) sample(clock);
        apply();
        settle();
    }

private:
    struct Clock {
        uint32_t net, inverted;
        bool before, edge;
        size_t begin, end;             // words of dirty_
        std::vector<uint32_t> ports;   // ports of DP16KDs: another port's write can change what they read
    };
    struct PortPlace {
        uint32_t cell = 0, clock = 0;
    };
    struct Block {
        uint64_t rows[512] = {};
        PortPlace at[2];
    };
    struct RamWrite {
        uint32_t ram, address;
        uint8_t data;
    };
    struct BlockWrite {
        uint32_t row = 0;
        uint64_t bits = 0, mask = 0;   // in the row's 36 bits
    };

    const uint32_t* inputs(uint32_t place) const { return t_.cells + place + 1; }
    const uint32_t* outputs(uint32_t place) const { return inputs(place) + kShapes[t_.cells[place]].inputs; }
    const uint32_t* constants(uint32_t place) const { return outputs(place) + kShapes[t_.cells[place]].outputs; }
    Block& ports_of(uint32_t place) { return blocks_[constants(place)[0]]; }

    uint64_t number(const uint32_t* nets, uint32_t count) const {
        uint64_t found = 0;
        for (uint32_t n = 0; n < count; ++n) found |= uint64_t{values_[nets[n]]} << n;
        return found;
    }
    void show(const uint32_t* nets, uint32_t count, uint64_t bits) {
        for (uint32_t n = 0; n < count; ++n) set(nets[n], bits >> n & 1);
    }

    void mark(uint32_t cell) { dirty_[cell / 64] |= uint64_t{1} << (cell % 64); }
    void align() {
        while (places_.size() % 64) places_.push_back(kNone);
    }

    void connect() {
        fanout_at_.assign(t_.nets + 1, 0);
        const auto each = [this](auto&& use) {
            for (size_t cell = 0; cell < places_.size(); ++cell)
                if (places_[cell] != kNone)
                    for (const uint32_t* net = inputs(places_[cell]); net != outputs(places_[cell]); ++net)
                        use(*net, static_cast<uint32_t>(cell));
        };
        each([this](uint32_t net, uint32_t) { ++fanout_at_[net + 1]; });
        for (size_t net = 0; net < t_.nets; ++net) fanout_at_[net + 1] += fanout_at_[net];
        fanout_.resize(fanout_at_.back());
        std::vector<uint32_t> next(fanout_at_.begin(), fanout_at_.end() - 1);
        each([&](uint32_t net, uint32_t cell) { fanout_[next[net]++] = cell; });
    }

    // Sets the state that the bitstream leaves.
    void start() {
        values_[1] = 1;
        for (size_t cell = 0; cell < places_.size(); ++cell) {
            if (places_[cell] == kNone) continue;
            mark(static_cast<uint32_t>(cell));
            if (t_.cells[places_[cell]] == kRead) readers_[constants(places_[cell])[0]] = static_cast<uint32_t>(cell);
            if (t_.cells[places_[cell]] == kFlipFlop) values_[*outputs(places_[cell])] = constants(places_[cell])[0] >> 2 & 1;
        }
        for (size_t ram = 0; ram < rams_.size(); ++ram)
            rams_[ram] = t_.rams[2 * ram] | uint64_t{t_.rams[2 * ram + 1]} << 32;
        for (size_t block = 0; block < blocks_.size(); ++block)
            for (size_t row = 0; t_.blocks[block] && row < 512; ++row) {
                const uint32_t* words = t_.contents + t_.blocks[block] - 1 + 2 * row;
                blocks_[block].rows[row] = words[0] | uint64_t{words[1]} << 32;
            }
    }

    // Cells only mark cells after them.
    void settle() {
        for (size_t word = 0; word < settled_words_; ++word)
            while (dirty_[word]) {
                const auto bit = static_cast<size_t>(__builtin_ctzll(dirty_[word]));
                dirty_[word] &= dirty_[word] - 1;
                evaluate(places_[word * 64 + bit]);
            }
    }

    void evaluate(uint32_t place) {
        const uint32_t *in = inputs(place), *out = outputs(place), *constant = constants(place);
        switch (t_.cells[place]) {
        case kLut: set(*out, *constant >> number(in, 4) & 1); break;
        case kCarry: carry(in, out, *constant); break;
        case kRead: show(out, 4, rams_[*constant] >> (4 * number(in, 4)) & 15); break;
        case kMultiplier: multiply(in, out); break;
        case kReset:
            if (values_[*in] != (*constant & 1)) set(*out, *constant >> 1 & 1);
            break;
        default: break;
        }
    }

    // Half a CCU2C: inputs A, B, C, D and the carry, outputs sum and carry; the table, and whether 0 is taken for the carry.
    void carry(const uint32_t* in, const uint32_t* out, uint32_t constant) {
        const uint32_t four = constant >> number(in, 4) & 1, two = constant >> number(in, 2) & 1;
        const uint32_t injected = constant >> 16 & 1, in_carry = values_[in[4]];
        set(out[0], static_cast<uint8_t>(four ^ (injected ? 0 : in_carry)));
        set(out[1], static_cast<uint8_t>(four ? in_carry : injected ? 0 : two));
    }

    void multiply(const uint32_t* in, const uint32_t* out) {
        const auto factor = [this](const uint32_t* nets, uint32_t is_signed) {
            const auto found = static_cast<int64_t>(number(nets, 18));
            return values_[is_signed] && found >> 17 ? found - (int64_t{1} << 18) : found;
        };
        show(out, 36, static_cast<uint64_t>(factor(in, in[36]) * factor(in + 18, in[37])));
    }

    void sample(const Clock& clock) {
        for (size_t word = clock.begin; word < clock.end; ++word)
            while (dirty_[word]) {
                const auto bit = static_cast<size_t>(__builtin_ctzll(dirty_[word]));
                dirty_[word] &= dirty_[word] - 1;
                const uint32_t place = places_[word * 64 + bit], *in = inputs(place), *constant = constants(place);
                if (t_.cells[place] == kFlipFlop) {
                    flip(in, *outputs(place), *constant);
                } else if (values_[in[8]] != constant[1]) {
                    ram_writes_.push_back({*constant, static_cast<uint32_t>(number(in + 4, 4)), static_cast<uint8_t>(number(in, 4))});
                }
            }
        for (const uint32_t port : clock.ports) read_port(port);
    }

    void flip(const uint32_t* in, uint32_t out, uint32_t constant) {
        const uint32_t enabled = values_[in[1]] ^ (constant & 1), reset = values_[in[2]] ^ (constant >> 1 & 1);
        if (!reset && !enabled) return;
        const auto next = static_cast<uint8_t>(reset ? constant >> 2 & 1 : values_[in[0]]);
        if (next != values_[out]) changes_.push_back({out, next});
    }

    // Inputs of a port: 14 of the address, clock enable, write enable, reset, 3 that must be 0, 36 of data. Constants: the
    // block, which of its ports, the width, and what it reads when it writes.
    enum WriteMode : uint32_t { kNormal, kThrough, kBefore };

    bool selected(const uint32_t* in) const { return values_[in[14]] && !number(in + 17, 3); }
    uint32_t row_of(const uint32_t* in) const { return static_cast<uint32_t>(number(in + 5, 9)); }

    // Returns the place of a port of this width in a row of 36 bits, four bytes of nine; narrow ones never see a ninth bit.
    uint32_t place_of(const uint32_t* in, uint32_t width) const {
        if (width == 36) return 0;
        if (width == 18) return 18 * values_[in[4]];
        const auto byte = static_cast<uint32_t>(number(in + 3, 2));
        if (width == 9) return 9 * byte;
        return 9 * byte + static_cast<uint32_t>(number(in, 3)) / width * width;
    }

    BlockWrite write_of(uint32_t place) const {
        const uint32_t* in = inputs(place);
        if (!values_[in[15]] || values_[in[16]] || !selected(in)) return {};
        const uint32_t width = constants(place)[2], at = place_of(in, width);
        uint64_t mask = (uint64_t{1} << width) - 1;
        for (uint32_t byte = 0; width >= 18 && byte < width / 9; ++byte)
            if (!values_[in[byte]]) mask &= ~(uint64_t{511} << (9 * byte));
        if (!mask) return {};
        return {row_of(in), number(in + 20, width) << at, mask << at};
    }

    void read_port(uint32_t place) {
        const uint32_t *in = inputs(place), *constant = constants(place);
        const BlockWrite own = write_of(place);
        if (own.mask) block_writes_.push_back({constant[0], own});
        if (values_[in[16]]) {
            shown_.push_back({place, 0});
            return;
        }
        if (!selected(in) || (values_[in[15]] && constant[3] == kNormal)) return;
        const Block& block = blocks_[constant[0]];
        uint64_t row = block.rows[row_of(in)];
        const PortPlace& other = block.at[1 - constant[1]];
        if (clocks_[other.clock].edge) {
            // A word that is read while it is written is anybody's guess: never what a careless design would like.
            const BlockWrite theirs = write_of(other.cell);
            if (theirs.row == row_of(in)) row ^= theirs.mask;
        }
        if (constant[3] == kThrough) row = (row & ~own.mask) | (own.bits & own.mask);
        shown_.push_back({place, row >> place_of(in, constant[2]) & ((uint64_t{1} << constant[2]) - 1)});
    }

    void apply() {
        for (const auto& [net, bit] : changes_) set(net, bit);
        for (const auto& [place, bits] : shown_) show(outputs(place), 36, bits);
        for (const RamWrite& write : ram_writes_) {
            const uint32_t shift = 4 * write.address;
            const uint64_t after = (rams_[write.ram] & ~(uint64_t{15} << shift)) | uint64_t{write.data} << shift;
            if (after != rams_[write.ram]) {
                rams_[write.ram] = after;
                mark(readers_[write.ram]);
            }
        }
        for (const auto& [block, write] : block_writes_) {
            uint64_t& row = blocks_[block].rows[write.row];
            row = (row & ~write.mask) | (write.bits & write.mask);
        }
        changes_.clear();
        shown_.clear();
        ram_writes_.clear();
        block_writes_.clear();
    }

    static constexpr uint32_t kNone = ~uint32_t{0};

    Tables t_;
    std::vector<uint8_t> values_;
    std::vector<uint64_t> rams_;
    std::vector<uint32_t> readers_;
    std::vector<Block> blocks_;
    std::vector<uint32_t> places_;     // cells in the order of dirty_: combinational ones, then clock by clock
    std::vector<uint64_t> dirty_;
    size_t settled_words_ = 0;
    std::vector<Clock> clocks_;
    std::vector<uint32_t> fanout_at_, fanout_;
    std::vector<std::pair<uint32_t, uint8_t>> changes_;
    std::vector<std::pair<uint32_t, uint64_t>> shown_;
    std::vector<RamWrite> ram_writes_;
    std::vector<std::pair<uint32_t, BlockWrite>> block_writes_;
};

}  // namespace edgedec::netlist
