# The processing system of Zynq UltraScale+: AMD PG201 for the parameters, UG1085 for the ports.

proc add_processing_system {} {
    global settings
    set system [create_bd_cell -type ip -vlnv [newest zynq_ultra_ps_e] $settings(system)]
    if {$settings(preset)} {
        apply_bd_automation -rule xilinx.com:bd_rule:zynq_ultra_ps_e -config {apply_board_preset "1"} $system
    }
    set properties [list \
        CONFIG.PSU__USE__M_AXI_GP0 1 \
        CONFIG.PSU__MAXIGP0__DATA_WIDTH 32 \
        CONFIG.PSU__USE__M_AXI_GP1 0 \
        CONFIG.PSU__USE__M_AXI_GP2 0 \
        CONFIG.PSU__USE__IRQ0 1 \
        CONFIG.PSU__FPGA_PL0_ENABLE 1 \
        CONFIG.PSU__CRL_APB__PL0_REF_CTRL__SRCSEL IOPLL]
    # S_AXI_GP2 is S_AXI_HP0_FPD, and so on; pynq sets a port to the width that the hand-off file has of it.
    for {set port 0} {$port < 4} {incr port} {
        set number [expr {$port + 2}]
        lappend properties CONFIG.PSU__USE__S_AXI_GP$number [expr {$port < $settings(ports)}]
        if {$port < $settings(ports)} {
            lappend properties CONFIG.PSU__SAXIGP${number}__DATA_WIDTH $settings(port_bits)
        }
    }
    set_property -dict $properties $system
    return $system
}

# Directly: both sides are AXI4, of one width and one clock.
proc connect_memory {system accelerator port clocked_name awake_name} {
    upvar $clocked_name clocked
    connect_bd_intf_net [get_bd_intf_pins $accelerator/m_axi_$port] [get_bd_intf_pins $system/S_AXI_HP${port}_FPD]
    lappend clocked $system/saxihp${port}_fpd_aclk
}

proc register_master {} {return M_AXI_HPM0_FPD}
proc register_clock {} {return maxihpm0_fpd_aclk}
proc fabric_clock {} {return pl_clk0}
proc fabric_reset {} {return pl_resetn0}
proc interrupt_input {} {return pl_ps_irq0}

proc set_fabric_clock {mhz} {
    global settings
    set_property CONFIG.PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ $mhz [get_bd_cells $settings(system)]
}

proc fabric_clock_mhz {} {
    global settings
    return [get_property CONFIG.PSU__CRL_APB__PL0_REF_CTRL__ACT_FREQMHZ [get_bd_cells $settings(system)]]
}
