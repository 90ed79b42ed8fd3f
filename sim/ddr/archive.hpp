// The state of a simulation as bytes: one function both saves and restores it.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace edgedec::ddr {

class Archive {
public:
    Archive() = default;  // saves
    Archive(const uint8_t* bytes, size_t size) : restores_(true), bytes_(bytes, bytes + size) {}

    bool restores() const { return restores_; }
    const std::vector<uint8_t>& bytes() const { return bytes_; }
    bool ended() const { return at_ == bytes_.size(); }

    template <class... T>
    void operator()(T&... items) {
        (one(items), ...);
    }

    void raw(void* data, size_t size) {
        auto* to = static_cast<uint8_t*>(data);
        if (!restores_) {
            bytes_.insert(bytes_.end(), to, to + size);
            return;
        }
        if (size > bytes_.size() - at_) throw std::runtime_error("the saved state is cut short");
        std::memcpy(to, bytes_.data() + at_, size);
        at_ += size;
    }

private:
    template <class T>
    void one(T& item) {
        static_assert(std::is_trivially_copyable_v<T>, "name its members");
        raw(&item, sizeof item);
    }
    template <class A, class B>
    void one(std::pair<A, B>& item) {
        (*this)(item.first, item.second);
    }
    template <class T>
    void one(std::vector<T>& items) {
        each(items);
    }
    template <class T>
    void one(std::deque<T>& items) {
        each(items);
    }
    template <class Items>
    void each(Items& items) {
        auto count = static_cast<uint64_t>(items.size());
        one(count);
        if (restores_ && count > bytes_.size()) throw std::runtime_error("the saved state is damaged");
        items.resize(static_cast<size_t>(count));
        for (auto& item : items) one(item);
    }

    bool restores_ = false;
    std::vector<uint8_t> bytes_;
    size_t at_ = 0;
};

}  // namespace edgedec::ddr
