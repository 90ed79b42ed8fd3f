// The registers that the assertions of a design became (edgedec.hw.emit.rtlil): each stays high after its failure.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace edgedec::sim {

// Finds them once, and says which one failed. A design without names for its signals, such as a netlist, has none.
class Contracts {
public:
    template <class Items>
    explicit Contracts(const Items& items) {
        for (const auto& [name, parts] : items.table) {
            if (!has(name) || parts.size() != 1 || !parts[0].curr) continue;
            const size_t last = start(name);
            rules_.push_back({parts[0].curr, parts[0].next, name.substr(0, last), name.substr(last + kStart.size())});
        }
    }

    size_t count() const { return rules_.size(); }

    // True for the name of such a register.
    bool has(const std::string& name) const { return !name.compare(start(name), kStart.size(), kStart); }

    // Forgets all failures.
    void forget() {
        for (auto& rule : rules_) {
            *rule.failed = 0;
            if (rule.next) *rule.next = 0;
        }
    }

    // The module and the rule that it broke, or nothing.
    std::string broken() const {
        for (const auto& rule : rules_)
            if (*rule.failed & 1) return spaced(rule.module) + "breaks the rule: " + spaced(rule.text);
        return "";
    }

private:
    struct Rule {
        uint32_t* failed;
        uint32_t* next;
        std::string module, text;
    };

    // 0 after npos + 1: a name without modules before it.
    static size_t start(const std::string& name) { return name.rfind(' ') + 1; }

    static std::string spaced(std::string text) {
        for (char& letter : text)
            if (letter == '_') letter = ' ';
        return text;
    }

    const std::string kStart = "violated_";
    std::vector<Rule> rules_;
};

}  // namespace edgedec::sim
